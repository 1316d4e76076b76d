//! Compares the public interface of the libraries with a snapshot in the repository.
//!
//! `UPDATE_PUBLIC_API=1 tests/run public_api` rewrites the snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

use quote::ToTokens;
use syn::{Attribute, FnArg, ImplItem, Item, Signature, TraitItem, Visibility};

use super::LIBRARIES;
use super::imports::{Crate, is_of_tests, leaves};
use super::source::{read, top};

/// The folder of the snapshots.
const SNAPSHOTS: &str = "tests/architecture/public_api";

/// The public interface of a library, as lines of text.
struct Interface<'a> {
    library: &'a Crate,
    lines: BTreeSet<String>,
    /// The public path of each type. The key consists of the type's file and name.
    types: BTreeMap<(&'a str, String), String>,
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

/// Returns code on one line. The spaces in signatures are as rustfmt writes them.
fn text(code: &impl ToTokens) -> String {
    let mut text = code.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        (" :", ":"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" ;", ";"),
        (" [", "["),
        ("[ ", "["),
        (" ]", "]"),
        ("- >", "->"),
        (")->", ") ->"),
        ("->", " -> "),
        ("  ", " "),
        ("  ", " "),
    ] {
        text = text.replace(from, to);
    }
    // The documentation of fields is not part of the interface.
    while let Some((before, rest)) = text.split_once("#[doc =") {
        let after = rest.split_once("\"] ").map_or("", |(_, after)| after);
        text = format!("{before}{after}");
    }
    text
}

fn signature(signature: &Signature) -> String {
    let asynchronous = if signature.asyncness.is_some() { "async " } else { "" };
    let inputs: Vec<String> = signature
        .inputs
        .iter()
        .map(|input| match input {
            FnArg::Receiver(receiver) => text(receiver),
            FnArg::Typed(argument) => text(&argument.ty),
        })
        .collect();
    let output = text(&signature.output);
    let generics = text(&signature.generics);
    let bounds = signature.generics.where_clause.as_ref().map(text).unwrap_or_default();
    format!(
        "{asynchronous}fn {}{generics}({}){output} {bounds}",
        signature.ident,
        inputs.join(", ")
    )
    .trim_end()
    .to_owned()
}

impl<'a> Interface<'a> {
    fn of(library: &'a Crate, name: &str) -> String {
        let mut interface = Self { library, lines: BTreeSet::new(), types: BTreeMap::new() };
        interface.module(&[], name);
        interface.methods();
        interface.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Adds the public items of a module under `path`.
    fn module(&mut self, place: &[String], path: &str) {
        let library = self.library;
        let Some((file, syntax)) = library.file(place) else { return };
        for item in &syntax.items {
            match item {
                Item::Mod(module) if is_public(&module.vis) && !is_hidden(&module.attrs) => {
                    let mut child = place.to_vec();
                    child.push(module.ident.to_string());
                    self.lines.insert(format!("mod {path}::{}", module.ident));
                    self.module(&child, &format!("{path}::{}", module.ident));
                }
                Item::Use(import) if is_public(&import.vis) && !is_hidden(&import.attrs) => {
                    for (name, target) in leaves(&import.tree, &[]) {
                        match library.definition(place, &target) {
                            Some((file, item)) => self.item(file, item, &format!("{path}::{name}")),
                            None => {
                                self.lines
                                    .insert(format!("use {path}::{name} = {}", target.join("::")));
                            }
                        }
                    }
                }
                item => self.item(file, item, path),
            }
        }
    }

    /// Adds an item. `path` is the path of its module, or the path under which a `pub use` exports
    /// the item.
    fn item(&mut self, file: &'a str, item: &Item, path: &str) {
        let (name, visibility, attributes) = match item {
            Item::Const(item) => (&item.ident, &item.vis, &item.attrs),
            Item::Enum(item) => (&item.ident, &item.vis, &item.attrs),
            Item::Fn(item) => (&item.sig.ident, &item.vis, &item.attrs),
            Item::Struct(item) => (&item.ident, &item.vis, &item.attrs),
            Item::Trait(item) => (&item.ident, &item.vis, &item.attrs),
            Item::Type(item) => (&item.ident, &item.vis, &item.attrs),
            _ => return,
        };
        if !is_public(visibility) || is_hidden(attributes) || is_of_tests(attributes) {
            return;
        }
        let last = path.rsplit("::").next().unwrap_or_default();
        let path = if last.starts_with(char::is_uppercase) || name == last {
            path.to_owned()
        } else {
            format!("{path}::{name}")
        };
        self.types.entry((file, name.to_string())).or_insert_with(|| path.clone());
        match item {
            Item::Const(item) => {
                self.lines.insert(format!("const {path}: {}", text(&item.ty)));
            }
            Item::Fn(item) => {
                self.lines.insert(format!("{path} {}", signature(&item.sig)));
            }
            Item::Type(item) => {
                self.lines.insert(format!(
                    "type {path}{} = {}",
                    text(&item.generics),
                    text(&item.ty)
                ));
            }
            Item::Struct(item) => {
                self.lines.insert(format!("struct {path}{}", text(&item.generics)));
                for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.lines.insert(format!("{path}.{name}: {}", text(&field.ty)));
                }
            }
            Item::Enum(item) => {
                self.lines.insert(format!("enum {path}{}", text(&item.generics)));
                for variant in &item.variants {
                    let fields = text(&variant.fields);
                    self.lines.insert(format!("{path}::{}{fields}", variant.ident));
                }
            }
            Item::Trait(item) => {
                self.lines.insert(format!("trait {path}{}", text(&item.generics)));
                for item in &item.items {
                    if let TraitItem::Fn(method) = item {
                        let is_provided = if method.default.is_some() { " { … }" } else { "" };
                        self.lines
                            .insert(format!("{path}::{}{is_provided}", signature(&method.sig)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds the public methods and the implemented traits of the public types.
    fn methods(&mut self) {
        for (place, file, syntax) in self.library.all() {
            for item in &syntax.items {
                let Item::Impl(block) = item else { continue };
                let syn::Type::Path(own) = &*block.self_ty else { continue };
                if is_of_tests(&block.attrs) {
                    continue;
                }
                let segments: Vec<String> =
                    own.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                let name = segments.last().cloned().unwrap_or_default();
                let defined =
                    self.library.definition(place, &segments).map_or(file, |(file, _)| file);
                let Some(path) = self.types.get(&(defined, name)).cloned() else { continue };
                if let Some((implemented, _)) = &block.trait_ {
                    let implemented = text(implemented);
                    self.lines.insert(format!("impl {implemented} for {path}"));
                    continue;
                }
                for item in &block.items {
                    match item {
                        ImplItem::Fn(method)
                            if is_public(&method.vis) && !is_hidden(&method.attrs) =>
                        {
                            self.lines.insert(format!("{path}::{}", signature(&method.sig)));
                        }
                        ImplItem::Const(item) if is_public(&item.vis) => {
                            self.lines.insert(format!(
                                "const {path}::{}: {}",
                                item.ident,
                                text(&item.ty)
                            ));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

#[test]
fn the_public_interface_is_the_one_in_the_snapshot() {
    let mut changed = Vec::new();
    for package in LIBRARIES {
        let name = Path::new(package).file_name().unwrap().to_string_lossy().into_owned();
        let interface = Interface::of(&Crate::library(package), &name.replace('-', "_"));
        assert!(interface.lines().count() > 10, "{package}: {interface}");
        let snapshot = format!("{SNAPSHOTS}/{name}.txt");
        if env::var_os("UPDATE_PUBLIC_API").is_some() {
            fs::create_dir_all(top().join(SNAPSHOTS)).unwrap();
            fs::write(top().join(&snapshot), &interface).unwrap();
        }
        let written = read(&snapshot);
        let (now, before): (BTreeSet<_>, BTreeSet<_>) =
            (interface.lines().collect(), written.lines().collect());
        changed.extend(now.difference(&before).map(|line| format!("+ {line}")));
        changed.extend(before.difference(&now).map(|line| format!("- {line}")));
    }
    assert!(
        changed.is_empty(),
        "the public interface has changed; if that is meant, run the test with UPDATE_PUBLIC_API=1:\n{}",
        changed.join("\n")
    );
}
