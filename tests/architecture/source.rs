//! Reads the repository as text: its files, the modules that they form, and the paths that they
//! use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root folder of the repository.
pub(super) fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a folder of the repository")
}

pub(super) fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns all files below `folder` with this ending, as paths from the root. Omits build output.
/// Also omits the fuzz targets, which are a separate workspace, and whose sources have no `main`.
pub(super) fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![top().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["target", "fuzz"].contains(&&*name) && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(ending) {
                found.push(from_top(&path));
            }
        }
    }
    found.sort();
    found
}

fn from_top(path: &Path) -> String {
    let path = path.strip_prefix(top()).unwrap();
    path.to_str().unwrap().replace('\\', "/")
}

/// Returns the folders of all packages.
pub(super) fn packages() -> Vec<String> {
    let manifests = ["crates", "examples", "tests"].map(|folder| files(folder, "Cargo.toml"));
    let folder = |manifest: String| manifest.trim_end_matches("/Cargo.toml").to_owned();
    manifests.into_iter().flatten().map(folder).collect()
}

/// A source file of a package, found through its `mod` declarations.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) path: String,
    pub(super) is_test: bool,
    /// Whether every `mod` on the path to the file is `pub`.
    pub(super) is_public: bool,
}

impl Module {
    fn text(&self) -> String {
        read(&self.path)
    }

    /// Returns the code without comments, and without the tests at its end.
    pub(super) fn code(&self) -> String {
        let text = self.text();
        let lines = without_tests(&text).lines();
        lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    /// Returns the code of the tests: the whole file, or the part at its end.
    pub(super) fn tests(&self) -> String {
        let text = self.text();
        let tests = if self.is_test { 0 } else { without_tests(&text).len() };
        text[tests..].to_owned()
    }

    /// Returns the number of lines without the tests and without the documentation of the module.
    pub(super) fn length(&self) -> usize {
        let text = self.text();
        without_tests(&text).lines().filter(|line| !line.starts_with("//!")).count()
    }
}

/// Returns the text before the tests, which by convention are the last item of a file.
fn without_tests(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod tests {");
    &text[..tests.unwrap_or(text.len())]
}

/// Returns all modules of a package. The search starts from the roots of its libraries, programs
/// and tests.
pub(super) fn modules(package: &str) -> Vec<Module> {
    let is_tests = package == "tests";
    // A test of a crate that starts servers is a program of its own: `tests/x.rs`, or `tests/x/main.rs`.
    let is_test = |place: &str| {
        let name = place.strip_prefix("/tests/").unwrap_or("/");
        !is_tests && (!name.contains('/') || name.ends_with("/main.rs"))
    };
    let roots = files(package, ".rs").into_iter().filter(|file| {
        let place = file.strip_prefix(package).unwrap();
        let is_binary = place.starts_with("/src/bin/") && place.matches('/').count() == 3;
        is_binary || is_test(place) || ["/src/lib.rs", "/src/main.rs", "/main.rs"].contains(&place)
    });
    let mut found = Vec::new();
    let mut next: Vec<Module> = roots
        .map(|path| Module {
            is_test: path == "tests/main.rs" || path.contains("/tests/"),
            is_public: true,
            path,
        })
        .collect();
    while let Some(module) = next.pop() {
        next.extend(children(&module));
        found.push(module);
    }
    found
}

/// Resolves each `..` of a relative path by text, so that a shared file has one path.
fn normalized(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path {
        if part == ".." {
            normalized.pop();
        } else {
            normalized.push(part);
        }
    }
    normalized
}

/// Returns the modules that a file declares and that have files of their own.
fn children(parent: &Module) -> Vec<Module> {
    let file = Path::new(&parent.path);
    let stem = file.file_stem().unwrap();
    let folder = file.parent().unwrap();
    let is_root =
        ["lib", "main", "mod"].iter().any(|root| stem == *root) || folder.ends_with("src/bin");
    let own_folder = if is_root { folder.to_owned() } else { folder.join(stem) };

    let mut attributes = String::new();
    let mut children = Vec::new();
    for line in parent.text().lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push_str(line);
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        let Some((before, name)) =
            line.strip_suffix(';').and_then(|declaration| declaration.rsplit_once("mod "))
        else {
            continue;
        };
        if !["", "pub ", "pub(crate) ", "pub(super) "].contains(&before) {
            continue;
        }
        let at = attributes.split_once("path = \"").and_then(|(_, path)| path.split('"').next());
        let candidates: Vec<PathBuf> = match at {
            Some(path) => vec![normalized(&folder.join(path))],
            None => {
                vec![own_folder.join(format!("{name}.rs")), own_folder.join(name).join("mod.rs")]
            }
        };
        let path = candidates.iter().find(|path| top().join(path).exists());
        children.push(Module {
            path: path
                .unwrap_or_else(|| panic!("{}: no file for mod {name}", parent.path))
                .to_str()
                .unwrap()
                .to_owned(),
            is_test: parent.is_test || attributes.contains("cfg(test)"),
            is_public: parent.is_public && before == "pub ",
        });
    }
    children
}

/// Returns the paths in the code that begin with `crate::`, without this beginning:
/// `store::StoreError` for `crate::store::{StoreError}`.
pub(super) fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, root) in code.match_indices("crate::") {
        let is_word = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        // `my_crate::` is the path of another crate. `$crate::` belongs to a macro that other
        // crates may call.
        if !is_word && !code[..at].ends_with('$') {
            tree(&code[at + root.len()..], "", &mut paths);
        }
    }
    paths
}

/// Reads a tree of paths as in `use a::{b, c::d}`. Returns the text after it.
fn tree<'a>(code: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() || rest.starts_with('}') {
                return rest.get(1..).unwrap_or_default();
            }
            let after = tree(rest, prefix, paths);
            // A path may be followed by text such as `as Name`. This text is skipped.
            let skip = after.find([',', '}']).unwrap_or(after.len());
            rest = &after[skip..];
        }
    }
    let end =
        code.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(code.len());
    let (name, rest) = code.split_at(end);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    match rest.strip_prefix("::") {
        Some(rest) => tree(rest, &path, paths),
        None => {
            paths.push(path);
            rest
        }
    }
}

/// Returns a section of a manifest, as a map from each name to the rest of its line.
pub(super) fn section(manifest: &str, name: &str) -> BTreeMap<String, String> {
    let heading = format!("[{name}]");
    manifest
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| {
            // `redis.workspace = true` is a setting of the dependency `redis`.
            let key = key.trim().split('.').next().unwrap_or_default();
            (key.to_owned(), value.trim().to_owned())
        })
        .collect()
}

#[test]
fn paths_are_read_as_rust_reads_them() {
    let code = "use crate::{Cost, store::{self, Mode as M, redis::*}};\n\
                let x = crate::MAX; my_crate::Y; $crate::Z";
    assert_eq!(crate_paths(code), ["Cost", "store::self", "store::Mode", "store::redis::*", "MAX"]);
}
