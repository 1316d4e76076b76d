//! Finds which files of a crate use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree};

use super::source::{Module, modules, read};

/// A path in the code, in segments, relative to the crate or to the file.
type Segments = Vec<String>;

/// A parsed file of a crate, without its tests.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) path: String,
    /// The position of the file below the root of the crate: `["store", "redis"]`.
    place: Segments,
    /// The items that the file defines.
    defined: BTreeSet<String>,
    /// The names that the file imports, with the paths that they refer to. The child modules of the
    /// file can use these names too.
    imported: Vec<(String, Segments)>,
    /// The paths that the file uses.
    used: Vec<Segments>,
    syntax: Option<syn::File>,
    /// The nesting depth, within the file, of the module that is being visited.
    depth: usize,
}

/// The files of one crate.
#[derive(Debug)]
pub(super) struct Crate {
    files: BTreeMap<Segments, Parsed>,
}

impl Crate {
    /// Parses the library of a package.
    pub(super) fn library(package: &str) -> Self {
        let root = format!("{package}/src/");
        let modules = modules(package).into_iter();
        let files = modules.filter(|module| !module.is_test && module.path.starts_with(&root));
        let files = files.filter(|module| !module.path.ends_with("/main.rs"));
        let files = files.map(|module| parse(&module, &root));
        Self { files: files.map(|file| (file.place.clone(), file)).collect() }
    }

    /// Returns for each file the other files that its code uses.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let arrows = self.files.values().map(|file| {
            let used = file.used.iter().filter_map(|path| self.resolve(&file.place, path, 0));
            let used = used.filter(|used| *used != file.path);
            // A builder and its type use each other, because of `Type::builder`. The two files
            // therefore count as one.
            let builder = file.path.replace("/mod.rs", "/builder.rs");
            let used: BTreeSet<&str> = used.filter(|used| *used != builder).collect();
            (&*file.path, used)
        });
        arrows.collect()
    }

    /// Returns the groups of files that use each other, directly or indirectly. A group is
    /// described by the uses in it, such as `a.rs -> b.rs`.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let arrows = self.arrows();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            arrows.keys().map(|file| (*file, reachable(file, &arrows))).collect();
        let mut circles: Vec<Vec<&str>> = Vec::new();
        for (file, from_file) in &reached {
            let is_in_circle = |other: &&&str| reached[**other].contains(file);
            let circle: Vec<&str> = from_file.iter().filter(is_in_circle).copied().collect();
            if !circle.is_empty() && !circles.contains(&circle) {
                circles.push(circle);
            }
        }
        let arrow = |from: &str, to: &str| format!("{from} -> {to}");
        let arrows_of = |circle: Vec<&str>| {
            let within = |from: &&str| {
                let used = arrows[from].iter().filter(|to| circle.contains(to));
                used.map(|to| arrow(from, to)).collect::<Vec<_>>()
            };
            circle.iter().flat_map(within).collect()
        };
        circles.into_iter().map(arrows_of).collect()
    }

    /// Returns the imports that refer to an item through the crate's root instead of the module
    /// that defines it.
    pub(super) fn imports_through_the_root(&self) -> Vec<String> {
        let root = &self.files[&Vec::new()];
        let mut found = Vec::new();
        for file in self.files.values().filter(|file| !file.place.is_empty()) {
            for path in &file.used {
                let [first, name, ..] = &path[..] else { continue };
                let is_of_root = first == "crate"
                    && !self.files.contains_key(&vec![name.clone()])
                    && root.imported.iter().any(|(imported, _)| imported == name);
                if is_of_root {
                    found.push(format!("{} uses {}", file.path, path.join("::")));
                }
            }
        }
        found
    }

    /// Returns the path and the syntax of the file at `place`.
    pub(super) fn file(&self, place: &[String]) -> Option<(&str, &syn::File)> {
        let file = self.files.get(place)?;
        Some((&file.path, file.syntax.as_ref()?))
    }

    /// Returns all files, with their places.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[String], &str, &syn::File)> {
        let files = self.files.iter();
        files.filter_map(|(place, file)| Some((&**place, &*file.path, file.syntax.as_ref()?)))
    }

    /// Resolves `path`, as it is written in the file at `place`. Returns the file that defines the
    /// item, and the item. Returns `None` if the item is not in this crate.
    pub(super) fn definition(&self, place: &[String], path: &[String]) -> Option<(&str, &Item)> {
        let defining = self.resolve(place, path, 0)?;
        let file = self.files.values().find(|file| file.path == defining)?;
        let name = path.last()?;
        let mut items = file.syntax.as_ref()?.items.iter();
        let item = items.find(|item| item_name(item).is_some_and(|ident| ident == name))?;
        Some((&file.path, item))
    }

    /// Resolves `path`, as it is written in the file at `place`. Returns the file that defines the
    /// item, or `None` if no file of this crate does.
    fn resolve(&self, place: &[String], path: &[String], depth: usize) -> Option<&str> {
        // Without this bound, modules that import each other by globs would be searched forever.
        if depth > 8 {
            return None;
        }
        let mut module = place.to_vec();
        let mut rest = path;
        let mut is_first = true;
        loop {
            let file = self.files.get(&module)?;
            let Some((name, after)) = rest.split_first() else { return Some(&file.path) };
            match &**name {
                "crate" if is_first => module.clear(),
                "self" => {}
                "super" => {
                    module.pop()?;
                }
                _ => {
                    let mut child = module.clone();
                    child.push(name.clone());
                    if self.files.contains_key(&child) {
                        module = child;
                    } else if file.defined.contains(name) {
                        return Some(&file.path);
                    } else if is_first {
                        return self.imported(file, name, after, depth);
                    } else {
                        return self.imported(file, name, after, depth).or(Some(&file.path));
                    }
                }
            }
            (rest, is_first) = (after, false);
        }
    }

    fn imported(&self, file: &Parsed, name: &str, after: &[String], depth: usize) -> Option<&str> {
        let mut targets = file.imported.iter().filter(|(imported, _)| imported == name);
        let (_, target) = targets.next()?;
        let target: Segments = target.iter().chain(after).cloned().collect();
        self.resolve(&file.place, &target, depth + 1)
    }
}

/// Returns the files that can be reached from `file`. The result includes `file` itself if `file`
/// is part of a circle.
fn reachable<'a>(
    file: &'a str,
    arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![file];
    while let Some(file) = next.pop() {
        for used in arrows.get(file).into_iter().flatten() {
            if reached.insert(*used) {
                next.push(used);
            }
        }
    }
    reached
}

/// Returns the syntax of a file.
pub(super) fn syntax(path: &str) -> syn::File {
    syn::parse_file(&read(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

fn parse(module: &Module, root: &str) -> Parsed {
    let below = Path::new(module.path.strip_prefix(root).unwrap()).with_extension("");
    let mut place: Segments =
        below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if ["mod", "lib"].contains(&&**place.last().unwrap()) {
        place.pop();
    }
    let mut parsed = Parsed { path: module.path.clone(), place, ..Parsed::default() };
    let syntax = syntax(&module.path);
    parsed.visit_file(&syntax);
    parsed.syntax = Some(syntax);
    parsed
}

/// Returns whether an item is compiled for tests only.
pub(super) fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let meta = &attribute.meta;
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
            || attribute.path().is_ident("test")
    })
}

fn item_name(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

/// Returns the paths of a `use`, each with the name under which it imports the item.
pub(super) fn leaves(tree: &UseTree, prefix: &[String]) -> Vec<(String, Segments)> {
    let with = |name: String| prefix.iter().cloned().chain([name]).collect::<Segments>();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &with(path.ident.to_string())),
        UseTree::Name(name) if name.ident == "self" => {
            vec![(prefix.last().cloned().unwrap_or_default(), prefix.to_vec())]
        }
        UseTree::Name(name) => vec![(name.ident.to_string(), with(name.ident.to_string()))],
        UseTree::Rename(name) => vec![(name.rename.to_string(), with(name.ident.to_string()))],
        UseTree::Glob(_) => vec![("*".to_owned(), prefix.to_vec())],
        UseTree::Group(group) => group.items.iter().flat_map(|item| leaves(item, prefix)).collect(),
    }
}

impl<'ast> Visit<'ast> for Parsed {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Mod(ItemMod { attrs, ident, content: Some(_), .. }) => (attrs, Some(ident)),
            Item::Mod(item) => (&item.attrs, None),
            Item::Use(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            _ => return visit::visit_item(self, item),
        };
        if is_of_tests(attributes) {
            return;
        }
        self.defined.extend(name.map(ToString::to_string));
        let is_module = matches!(item, Item::Mod(ItemMod { content: Some(_), .. }));
        self.depth += usize::from(is_module);
        visit::visit_item(self, item);
        self.depth -= usize::from(is_module);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_own = matches!(item.vis, syn::Visibility::Inherited);
        for (name, path) in leaves(&item.tree, &[]) {
            // Inside a module of the file, `super` refers to the file itself.
            let path = path.into_iter().enumerate();
            let path: Segments = path
                .skip_while(|(index, segment)| *index < self.depth && segment == "super")
                .map(|(_, segment)| segment)
                .collect();
            if is_own {
                self.used.push(path.clone());
            }
            self.imported.push((name, path));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let segments: Segments = segments
            .into_iter()
            .enumerate()
            .skip_while(|(index, segment)| *index < self.depth && segment == "super")
            .map(|(_, segment)| segment)
            .collect();
        // A single name in lower case is skipped, because it is a variable or is imported.
        let is_item = segments.len() > 1
            || segments.iter().any(|name| name.starts_with(|c: char| c.is_uppercase()));
        if is_item && path.leading_colon.is_none() {
            self.used.push(segments);
        }
        visit::visit_path(self, path);
    }
}
