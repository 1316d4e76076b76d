//! Counts signs of disorder in rl-core. CONTRIBUTING.md has a table of the largest accepted
//! figures.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Ident, ImplItem, ImplItemFn, Item, ItemFn, TraitItem, TraitItemFn, Type, Visibility};

use super::imports::{is_of_tests, syntax};
use super::source::{files, modules, read};

const SOURCES: &str = "crates/rl-core/src/";

/// The figures by the name of their sign, such as `lines of Lua`.
type Figures = BTreeMap<String, usize>;

/// Returns the part of rl-core to which a file belongs: a folder of the crate or of its stores.
fn part(path: &str) -> &str {
    let path = path.strip_prefix(SOURCES).unwrap_or(path);
    let mut folders = path.match_indices('/').map(|(end, _)| &path[..end]);
    match (folders.next(), folders.next()) {
        (Some("store"), Some(store)) => store,
        (Some(folder), _) => folder,
        (None, _) => "no folder",
    }
}

/// Returns the number of lines that are neither empty nor a comment.
fn lines_of_code(text: &str, comment: &str) -> usize {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with(comment)).count()
}

/// The functions of rl-core without its tests.
#[derive(Debug, Default)]
struct Functions {
    of_limiter: usize,
    of_store: usize,
    decide: usize,
}

impl Functions {
    fn function(&mut self, name: &Ident) {
        self.decide += usize::from(name.to_string().starts_with("decide_"));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(module) if is_of_tests(&module.attrs) => return,
            Item::Impl(methods) if methods.trait_.is_none() => {
                let is_public = |item: &&ImplItem| matches!(item, ImplItem::Fn(item) if matches!(item.vis, Visibility::Public(_)));
                if matches!(&*methods.self_ty, Type::Path(of) if of.path.is_ident("RateLimiter")) {
                    self.of_limiter += methods.items.iter().filter(is_public).count();
                }
            }
            Item::Trait(store) if store.ident == "Store" => {
                let is_method = |item: &&TraitItem| matches!(item, TraitItem::Fn(_));
                self.of_store += store.items.iter().filter(is_method).count();
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.sig.ident);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.function(&function.sig.ident);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.function(&function.sig.ident);
        visit::visit_trait_item_fn(self, function);
    }
}

fn counted() -> Figures {
    let mut figures = Figures::new();
    let mut add = |sign: &str, count: usize| *figures.entry(sign.to_owned()).or_default() += count;
    let mut functions = Functions::default();
    let sources = modules("crates/rl-core").into_iter();
    let sources: BTreeMap<String, _> = sources.map(|file| (file.path.clone(), file)).collect();
    for file in sources.values().filter(|file| !file.is_test) {
        let code = file.code();
        let lines = lines_of_code(&code, "//");
        add("lines of Rust", lines);
        add(&format!("lines of Rust in `{}`", part(&file.path)), lines);
        add("files of Rust and Lua", 1);
        add("files under 60 lines", usize::from(read(&file.path).lines().count() < 60));
        add("`#[inline…]`", code.matches("#[inline").count());
        functions.visit_file(&syntax(&file.path));
    }
    for script in files(SOURCES, ".lua") {
        let text = read(script);
        add("lines of Lua", lines_of_code(&text, "--"));
        add("files of Rust and Lua", 1);
        add("files under 60 lines", usize::from(text.lines().count() < 60));
    }
    add("methods of `RateLimiter`", functions.of_limiter);
    add("methods of `Store`", functions.of_store);
    add("functions `decide_…`", functions.decide);
    figures
}

/// Returns the figures in the table of CONTRIBUTING.md.
fn written() -> Figures {
    let document = read("CONTRIBUTING.md");
    let (_, section) = document.split_once("\n## Signs of disorder\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|row| {
        let (sign, figure) = row.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | ")?;
        // The heading of the table has no number.
        Some((sign.to_owned(), figure.replace(' ', "").parse().ok()?))
    });
    rows.collect()
}

#[test]
fn signs_of_disorder_stay_below_the_written_figures() {
    let (counted, written) = (counted(), written());
    let signs: BTreeSet<&String> = counted.keys().chain(written.keys()).collect();
    let mut grown = Vec::new();
    for sign in signs {
        match (counted.get(sign), written.get(sign)) {
            (Some(count), Some(most)) if count <= most => println!("{sign}: {count} of {most}"),
            (Some(count), Some(most)) => grown.push(format!("{sign}: {count}, written {most}")),
            (Some(count), None) => grown.push(format!("{sign}: {count}, but there is no row")),
            (None, _) => grown.push(format!("{sign}: a row, but nothing is counted")),
        }
    }
    assert!(
        grown.is_empty(),
        "signs of disorder have grown:\n{}\nEither mend the cause, or change the table of \
         CONTRIBUTING.md in a commit that says why the code has to grow.",
        grown.join("\n")
    );
}
