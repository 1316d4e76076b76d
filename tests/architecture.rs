//! Checks rules about the structure of the repository by reading its files.

mod disorder;
mod imports;
mod named_tests;
mod names;
mod prose;
mod public_api;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use imports::Crate;
use names::Names;
use source::{crate_paths, files, modules, packages, read, section, top};

/// The modules that each store may use.
const USED_BY_STORES: &[&str] = &[
    "maybe_ready",
    "time",
    "model",
    "policy",
    "decision",
    "algorithm",
    "stats",
    "store",
    "observe",
];

/// The modules that each module of rl-core may use. A module comes after all modules that it uses.
const LEVELS: [(&str, &[&str]); 21] = [
    ("maybe_ready", &[]),
    ("time", &[]),
    ("model", &["time"]),
    ("algorithm", &["model", "time"]),
    ("policy", &["model", "time", "algorithm"]),
    ("decision", &["model", "time", "policy", "algorithm"]),
    ("serde_impls", &["model", "policy", "decision"]),
    ("client_ip", &[]),
    ("denial", &["model", "policy", "decision"]),
    ("headers", &["model", "policy", "decision"]),
    ("key", &["model", "client_ip"]),
    ("stats", &["time", "model", "policy::LimitSet"]),
    ("store", &["maybe_ready", "time", "model", "policy", "decision", "algorithm", "stats"]),
    ("observe", &["model", "policy", "decision"]),
    ("source", &["maybe_ready", "model", "policy"]),
    ("store/memory", USED_BY_STORES),
    ("store/redis", USED_BY_STORES),
    (
        "rules",
        &[
            "time",
            "model",
            "policy",
            "decision",
            "client_ip",
            "headers",
            "key",
            "stats",
            "store",
            "observe",
            "source",
        ],
    ),
    (
        "limiter",
        &[
            "maybe_ready",
            "time",
            "model",
            "policy",
            "decision",
            "headers",
            "key::RequestInfo",
            "stats",
            "store",
            "observe",
            "source",
            "rules",
        ],
    ),
    (
        "adapter",
        &[
            "maybe_ready",
            "model",
            "policy",
            "decision",
            "client_ip",
            "denial",
            "headers",
            "key",
            "store",
            "observe",
            "source",
            "rules",
            "limiter",
        ],
    ),
    ("conformance", &["maybe_ready", "time", "model", "policy", "decision", "store", "limiter"]),
];

/// Returns the names that the root of rl-core exports, each with the module that defines it.
fn exports() -> BTreeMap<String, String> {
    let root = read("crates/rl-core/src/lib.rs");
    let mut exports = BTreeMap::new();
    for statement in root.split("pub use ").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        for path in crate_paths(&format!("crate::{statement}")) {
            let (module, name) = path.rsplit_once("::").unwrap();
            let module = module.split("::").next().unwrap_or_default();
            exports.insert(name.to_owned(), module.to_owned());
        }
    }
    exports
}

#[test]
fn modules_of_the_core_only_use_what_is_below_them() {
    let levels = BTreeMap::from(LEVELS);
    let exports = exports();
    let mut wrong = Vec::new();
    for module in modules("crates/rl-core") {
        let place = module.path.strip_prefix("crates/rl-core/src/").unwrap();
        let parts: Vec<&str> = place.trim_end_matches(".rs").split('/').collect();
        let level = match parts[..] {
            ["lib" | "_documentation"] => continue,
            ["store", folder @ ("memory" | "redis"), ..] => format!("store/{folder}"),
            _ => parts[0].to_owned(),
        };
        let Some(allowed) = levels.get(&*level) else { panic!("{place}: no level for {level}") };
        if module.is_test {
            continue;
        }
        for path in crate_paths(&module.code()) {
            let first = path.split("::").next().unwrap_or_default();
            let used = match exports.get(first) {
                Some(module) => format!("{module}::{path}"),
                None => path.clone(),
            };
            let may =
                |allowed: &&str| used == **allowed || used.starts_with(&format!("{allowed}::"));
            let is_own = used.split("::").next() == Some(parts[0]);
            if !is_own && !allowed.iter().any(may) {
                wrong.push(format!("{place} uses {path}"));
            }
        }
        let code = module.code();
        let sibling = match &*level {
            "store/memory" => ["RedisStore", "redis::"],
            "store/redis" => ["MemoryStore", "memory::"],
            _ => ["super::super", "super::super"],
        };
        if sibling.iter().any(|name| code.contains(name)) {
            wrong.push(format!("{place} names {sibling:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// The `lib.rs` of rl-core declares its modules in the order of `LEVELS`.
#[test]
fn the_core_declares_its_modules_from_the_bottom_up() {
    let root = read("crates/rl-core/src/lib.rs");
    let declared: Vec<&str> = root
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
        .map(|name| name.trim_end_matches(';'))
        .collect();
    let allowed = BTreeMap::from(LEVELS);
    for (place, module) in declared.iter().enumerate() {
        for used in allowed.get(module).copied().unwrap_or_default() {
            let used = used.split("::").next().unwrap_or_default();
            let is_before = declared[..place].contains(&used);
            // These modules may use the error of a store, even if `store` is declared after them.
            let is_error = matches!(*module, "observe" | "source") && used == "store";
            assert!(is_before || is_error, "mod {module} stands before {used}");
        }
    }
}

/// If `main` returns an error, the program prints its `Debug`, so that must be a text for people.
#[test]
fn errors_have_the_same_text_for_debug_as_for_display() {
    let mut errors = 0;
    let mut wrong = Vec::new();
    for package in packages().iter().filter(|package| package.starts_with("crates/")) {
        for module in modules(package).into_iter().filter(|module| !module.is_test) {
            let code = module.code();
            for line in code.lines().filter(|line| line.starts_with("impl")) {
                let Some((_, error)) = line.split_once("Error for ") else { continue };
                let name = error.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                errors += 1;
                // A crate that does not use rl-core writes out the macro.
                let by_hand = format!("impl fmt::Debug for {name} {{");
                let by_hand = code.split_once(&by_hand).is_some_and(|(_, rest)| {
                    rest.lines()
                        .nth(2)
                        .is_some_and(|line| line.trim() == "fmt::Display::fmt(self, f)")
                });
                if !by_hand && !code.contains(&format!("debug_as_display!({name}")) {
                    wrong.push(format!("{}: {name}", module.path));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(errors > 25, "only {errors} errors were found");
}

#[test]
fn adapters_do_not_know_each_other() {
    for (adapter, other) in [("rl-tower", "rl-actix"), ("rl-actix", "rl-tower")] {
        let manifest = read(format!("crates/{adapter}/Cargo.toml"));
        for kind in ["dependencies", "dev-dependencies"] {
            assert!(!section(&manifest, kind).contains_key(other), "{adapter}");
        }
    }
}

#[test]
fn the_core_depends_on_nothing_of_http_or_of_ours() {
    let manifest = read("crates/rl-core/Cargo.toml");
    for name in section(&manifest, "dependencies").keys() {
        let is_http = ["http", "hyper", "axum", "actix", "tower", "tonic", "reqwest", "h2", "rl-"]
            .iter()
            .any(|word| name.starts_with(word));
        assert!(!is_http, "{name}");
    }
}

#[test]
fn every_source_file_belongs_to_a_module() {
    let reached: BTreeSet<String> =
        packages().iter().flat_map(|package| modules(package)).map(|module| module.path).collect();
    let there: BTreeSet<String> = ["crates", "examples", "tests"]
        .into_iter()
        .flat_map(|folder| files(folder, ".rs"))
        .collect();
    assert!(there.len() > 50);
    let orphans: Vec<&String> = there.difference(&reached).collect();
    assert_eq!(orphans, [""; 0]);
}

#[test]
fn files_are_at_most_700_lines_long_without_tests() {
    for package in packages() {
        for module in modules(&package) {
            let length = module.length();
            assert!(module.is_test || length <= 700, "{}: {length}", module.path);
        }
    }
}

const ALGORITHMS: &str = "crates/rl-core/src/algorithm";
const SCRIPTS: &str = "crates/rl-core/src/store/redis/scripts";

#[test]
fn every_algorithm_has_a_twin_and_both_name_each_other() {
    let mut twins = 0;
    for file in files(ALGORITHMS, ".rs") {
        let name = file.strip_prefix(ALGORITHMS).unwrap();
        let name = name.trim_start_matches('/').trim_end_matches(".rs");
        let (name, path) = match name {
            "fixed_window/mod" => ("fixed_window", "fixed_window/mod"),
            // Only `fixed_window/mod.rs` names the twin, so the other files of its folder are
            // skipped.
            name if name.starts_with("fixed_window/") => continue,
            // These files are not algorithms.
            "mod" | "divisor" | "log" | "plan" | "replied" | "step" => continue,
            name => (name, name),
        };
        twins += 1;
        let script = read(format!("{SCRIPTS}/algorithms/{name}.lua"));
        let header = script.lines().next().unwrap_or_default();
        let rust = format!("the Lua twin of `algorithm/{path}.rs`. Change both.");
        assert!(header.starts_with("-- ") && header.ends_with(&rust), "{name}: {header}");
        let lua = format!(
            "`store/redis/scripts/algorithms/{name}.lua` is the same function in Lua; change both."
        );
        let module = read(&file).replace("\n//! ", " ");
        assert!(module.contains(&lua), "{name}");
    }
    assert!(twins > 0);
}

/// A script may use only the keys in `KEYS`: a key that it constructs itself may belong to another
/// server of a cluster. A script must also set an expiry, because a key without one is never
/// removed.
#[test]
fn scripts_touch_the_keys_they_are_given_and_nothing_else() {
    let scripts = files(SCRIPTS, ".lua");
    assert!(!scripts.is_empty());
    let mut calls = 0;
    for file in scripts {
        let text = read(&file);
        assert!(text.starts_with("-- "), "{file}: no header");
        assert!(!text.contains('\u{a0}'), "{file}: a no-break space");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
        let code = lines.collect::<Vec<_>>().join("\n");
        for (at, _) in code.match_indices("KEYS[") {
            let end = at + code[at..].find(']').unwrap();
            let (before, after) = (code[..at].trim_end(), code[end + 1..].trim_start());
            let is_built = before.ends_with("..") || after.starts_with("..");
            assert!(!is_built, "{file}: a key is built: {}", &code[at..=end]);
        }
        // In Lua 5.4, `unpack` is a field of `table`.
        let code = code.replace("(table.unpack or unpack)(", "unpack(");
        // Some scripts have `redis.call` as the local variable `call`.
        for call in code.split("call(").skip(1) {
            calls += 1;
            let call = call.lines().next().unwrap_or_default();
            let mut words = call.split([',', ')']).map(str::trim);
            let command = words.next().unwrap_or_default().trim_matches(['\'', '"']);
            let forbidden = ["KEYS", "SCAN", "FLUSH", "RANDOMKEY", "SELECT", "CONFIG"];
            assert!(!forbidden.iter().any(|word| command.starts_with(word)), "{file}: {call}");
            let key = words.next().unwrap_or_default();
            let has_key = key.starts_with("KEYS[") || key == "unpack(KEYS";
            assert!(has_key || command == "TIME", "{file}: no key of KEYS: {call}");
            assert!(command != "SET" || call.contains("'PX"), "{file}: no expiry: {call}");
        }
    }
    assert!(calls > 5);
}

/// Returns all source files with their paths. Those of the benchmarks are omitted, because they
/// measure real time.
fn sources() -> Vec<source::Module> {
    packages()
        .iter()
        .filter(|package| *package != "crates/rl-bench")
        .flat_map(|package| modules(package))
        .collect()
}

#[test]
fn only_the_clock_reads_the_time() {
    // The names are split in two, so that this file does not contain them.
    let (wall, running) = (concat!("SystemTime", "::now"), concat!("Instant", "::now"));
    for module in sources() {
        let code = module.code() + &module.tests();
        let is_clock = module.path == "crates/rl-core/src/time/system_clock.rs";
        // The clock of the runtime is allowed, because a test can pause it.
        let of_runtime =
            [concat!("tokio::time::", "Instant"), concat!("tokio::time::", "{Instant")];
        let is_of_runtime = of_runtime.iter().any(|import| code.contains(import));
        assert!(is_clock || !code.contains(wall), "{}: {wall}", module.path);
        assert!(is_of_runtime || !code.contains(running), "{}: {running}", module.path);
    }
}

#[test]
fn no_test_sleeps() {
    // The programs of the cookbook may wait for a time. Their tests are in folders below.
    let is_program =
        |path: &str| path.strip_prefix("tests/recipes/").is_some_and(|file| !file.contains('/'));
    for module in sources().iter().filter(|module| !is_program(&module.path)) {
        for sleep in [concat!("sleep", "("), concat!("sleep_", "until(")] {
            assert!(!module.tests().contains(sleep), "{}", module.path);
        }
    }
}

#[test]
fn nothing_is_left_to_do_in_the_code() {
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!(")];
    for ending in [".rs", ".lua", ".toml"] {
        for file in ["crates", "examples", "tests"].iter().flat_map(|folder| files(folder, ending))
        {
            let text = read(&file);
            let note = notes.iter().find(|note| text.contains(**note));
            assert_eq!(note, None, "{file}");
        }
    }
}

/// Returns the words after "Rust " that look like a version.
fn rust_versions(text: &str) -> Vec<&str> {
    let after = text.split("Rust ").skip(1);
    let version = after.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
    });
    version.filter(|version| version.starts_with("1.")).collect()
}

#[test]
fn the_needed_compiler_is_written_as_in_the_manifest() {
    let manifest = read("Cargo.toml");
    let version = section(&manifest, "workspace.package")["rust-version"].clone();
    let version = version.trim_matches('"');
    assert!(!rust_versions(&read("README.md")).is_empty(), "README.md names no version");
    for file in files(".", ".md") {
        for written in rust_versions(&read(&file)) {
            assert_eq!(written, version, "{file}");
        }
    }
}

#[test]
fn images_are_built_with_a_compiler_that_their_package_accepts() {
    let numbers = |version: &str| -> Vec<u32> {
        version.split('.').map(|number| number.parse().unwrap()).collect()
    };
    let observability = "examples/observability";
    for (folder, package) in [("ops", "crates/rl-cli"), (observability, observability)] {
        let image = read(format!("{folder}/Dockerfile"));
        let compiler = image.lines().find_map(|line| line.strip_prefix("FROM rust:")).unwrap();
        let (compiler, _) = compiler.split_once('-').unwrap();
        let manifest = read(format!("{package}/Cargo.toml"));
        let needed = section(&manifest, "package")["rust-version"].clone();
        assert!(numbers(compiler) >= numbers(needed.trim_matches('"')), "{folder}: {compiler}");
    }
}

#[test]
fn the_image_and_the_unit_run_commands_that_the_program_has() {
    let (image, unit) = (read("ops/Dockerfile"), read("ops/rl.service"));
    let first_words = |text: &str, before: &str, end: char| -> Vec<String> {
        let words = text.split(before).skip(1).filter_map(|rest| rest.split(end).next());
        words.map(str::to_owned).collect()
    };
    let mut commands = first_words(&image, " CMD [\"/rl\", \"", '"');
    commands.extend(first_words(&image, "\nCMD [\"", '"'));
    commands.extend(first_words(&unit, "=/usr/local/bin/rl ", ' '));
    assert_eq!(commands, ["health", "serve", "check", "serve"]);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rl-command"));
        command.env_remove("RL_PROXIES").args(arguments).output().unwrap()
    };
    for command in commands {
        assert!(run(&[&command, "--help"]).status.success(), "{command}");
    }
    let limits = top().join("ops/limits/limits.yaml");
    let output = run(&["check", limits.to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn every_example_is_in_the_index_and_every_package_is_a_member() {
    let index = read("examples/README.md");
    for package in packages() {
        let of_folder = package.split_once('/').map(|(folder, _)| format!("\"{folder}/*\""));
        let manifest = read("Cargo.toml");
        let members = &section(&manifest, "workspace")["members"];
        let is_member = of_folder.is_some_and(|folder| members.contains(&folder))
            || members.contains(&format!("\"{package}\""));
        assert!(is_member, "{package}: {members}");
        assert!(package.matches('/').count() <= 1, "{package} is too deep for {members}");
        if let Some(example) = package.strip_prefix("examples/") {
            assert!(index.contains(&format!("]({example}/")), "{example} is not in the index");
        }
    }
    for link in index.split("](").skip(1) {
        let link = link.split(')').next().unwrap_or_default();
        let is_there = link.contains("://") || top().join("examples").join(link).exists();
        assert!(is_there, "the index leads to {link}");
    }
}

#[test]
fn every_public_module_of_the_core_shows_an_example() {
    let public = modules("crates/rl-core")
        .into_iter()
        .filter(|module| module.is_public && !module.is_test && module.path.ends_with("/mod.rs"));
    let mut shown = 0;
    for module in public {
        let text = read(&module.path);
        assert!(text.contains("//! # Example"), "{}", module.path);
        shown += 1;
    }
    assert!(shown > 8);
}

/// Each row of SECURITY.md gives a command `tests/run NAME`. If no test had that name, the command
/// would run nothing.
#[test]
fn every_attack_names_a_test_that_exists() {
    let sources: String =
        ["crates", "tests"].iter().flat_map(|folder| files(folder, ".rs")).map(read).collect();
    let document = read("SECURITY.md");
    let commands: Vec<&str> =
        document.split('`').filter_map(|code| code.strip_prefix("tests/run ")).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for name in commands {
        assert!(name == "NAME" || sources.contains(&["fn ", name].concat()), "{name}");
    }
}

/// `tests/run --soak` names modules. If a test with a size for it were in another module, the test
/// would never run at that size.
#[test]
fn a_soak_runs_every_test_that_has_a_size_for_it() {
    let script = read("tests/run");
    let named = script.split_once("if [ \"${1-}\" = --soak ]").unwrap().1;
    let named = named.split_once("\nelse\n").unwrap().0;
    let named: Vec<&str> = named.split([' ', '"', '\n']).filter(|word| !word.is_empty()).collect();
    let sources = files("crates", ".rs").into_iter().chain(files("tests", ".rs"));
    let mut found = 0;
    for path in sources {
        if ["tests/src/lib.rs", "tests/architecture.rs"].contains(&&*path) {
            continue;
        }
        let text = read(&path);
        if text.contains("RL_SOAK") || text.contains("is_soak()") {
            let module = path.trim_end_matches(".rs").replace("crates/rl-core/src/", "");
            let module = module.trim_start_matches("tests/").replace('/', "::");
            let is_in = |name: &&str| [&module, "::"].concat().starts_with(&[name, "::"].concat());
            assert!(named.iter().any(is_in), "{module}");
            found += 1;
        }
    }
    assert!(found >= 6, "{found}");
}

/// No dependency may have a licence with stronger requirements than ours. The packages that only
/// rl-bench needs are not read: they are in no published crate, and a machine that only runs the
/// tests does not download them. `cargo deny` reads them too.
#[test]
fn no_dependency_is_under_the_gpl_alone() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--workspace", "--exclude", "rl-bench", "--all-features"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--prefix", "none", "--format", "{p};{l};"])
        .current_dir(top())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{errors}");
    let tree = String::from_utf8(tree.stdout).unwrap();
    let packages: BTreeMap<&str, &str> = tree
        .lines()
        .filter_map(|line| line.split_once(';'))
        .map(|(package, rest)| (package, rest.split(';').next().unwrap_or_default()))
        .collect();
    assert!(packages.len() > 50);
    for (name, license) in packages {
        // If a dependency offers several licences, one acceptable licence is enough.
        let mut choices = license.split(" OR ").flat_map(|choice| choice.split('/'));
        assert!(choices.any(|choice| !choice.contains("GPL")), "{name}: {license}");
        let is_ours = name.contains("(/");
        assert!(!is_ours || license == "MIT OR Apache-2.0", "{name}: {license}");
    }
}

/// The crates that are published as libraries.
const LIBRARIES: [&str; 8] = [
    "crates/rl-core",
    "crates/rl-tower",
    "crates/rl-actix",
    "crates/rl-records",
    "crates/rl-admin",
    "crates/rl-metrics",
    "crates/rl-serve",
    "crates/rl-server",
];

#[test]
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    let circles: Vec<String> = LIBRARIES
        .iter()
        .flat_map(|package| {
            let library = Crate::library(package);
            library.circles().into_iter().map(|circle| circle.join("\n")).collect::<Vec<_>>()
        })
        .collect();
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

#[test]
fn imports_name_the_module_that_defines_an_item_and_not_the_root() {
    let found: Vec<String> = LIBRARIES
        .iter()
        .flat_map(|package| Crate::library(package).imports_through_the_root())
        .collect();
    assert!(found.is_empty(), "{} imports:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_two_types_of_a_crate_share_a_name() {
    let mut twice = Vec::new();
    for package in LIBRARIES.into_iter().chain(["crates/rl-bench"]) {
        for (name, files) in Names::of(package).types {
            if files.len() > 1 {
                twice.push(format!("{name}: {}", files.into_iter().collect::<Vec<_>>().join(" ")));
            }
        }
    }
    assert!(twice.is_empty(), "{} names:\n{}", twice.len(), twice.join("\n"));
}

#[test]
fn documentation_of_functions_begins_with_a_verb_and_hides_no_method_of_a_trait() {
    let (mut found, mut documented) = (Vec::new(), 0);
    for package in packages().iter().filter(|package| *package != "tests") {
        let names = Names::of(package);
        documented += names.documented;
        found.extend(names.without_verb);
        found.extend(names.hidden_methods.iter().map(|method| format!("hidden: {method}")));
    }
    assert!(documented > 500, "{documented}");
    assert!(found.is_empty(), "{} of {documented}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn wording_that_readers_had_to_read_twice_is_gone() {
    let sources = ["crates", "examples", "tests"].iter();
    let sources = sources.flat_map(|folder| {
        [".rs", ".lua", ".md"].iter().flat_map(|ending| files(folder, ending)).collect::<Vec<_>>()
    });
    let documents = files(".", ".md").into_iter().filter(|file| !file.contains('/'));
    let documents = documents.filter(|file| file != "CHANGELOG.md");
    let found: Vec<String> =
        sources.chain(documents).flat_map(|file| prose::ruled_out(&file)).collect();
    assert!(found.is_empty(), "{} passages:\n{}", found.len(), found.join("\n"));
}

#[test]
fn names_of_tests_say_behaviour_and_condition() {
    let riddles = [
        "who_",
        "whoever_",
        "whose_",
        "what_",
        "whatever_",
        "of_",
        "that_",
        concat!("no", "body_"),
    ];
    let mut found = Vec::new();
    for module in packages().iter().flat_map(|package| modules(package)) {
        for name in module.tests().split("fn ").skip(1) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            let is_riddle = riddles.iter().any(|word| name.starts_with(word))
                || [concat!("_no", "body"), "_so_many", "_whoever", concat!("_to", "ld")]
                    .iter()
                    .any(|word| name.contains(word));
            if is_riddle || name.len() > 90 {
                found.push(format!("{}: {name}", module.path));
            }
        }
    }
    assert!(found.is_empty(), "{} names:\n{}", found.len(), found.join("\n"));
}
