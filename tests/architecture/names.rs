//! Checks the names of types, and the first words of documentation.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItemFn, Item, ItemFn, Lit, Meta, TraitItemFn};

use super::imports::{is_of_tests, syntax};
use super::source::modules;

/// The names and documentation in the files of one package.
#[derive(Debug, Default)]
pub(super) struct Names {
    file: String,
    /// The files that define a type with the given name.
    pub(super) types: BTreeMap<String, BTreeSet<String>>,
    /// Functions whose documentation does not begin with a verb in the third person.
    pub(super) without_verb: Vec<String>,
    /// Methods of traits that the documentation hides.
    pub(super) hidden_methods: Vec<String>,
    /// The number of functions with documentation.
    pub(super) documented: usize,
}

impl Names {
    /// Reads a package without its tests.
    pub(super) fn of(package: &str) -> Self {
        let mut names = Self::default();
        for module in modules(package).into_iter().filter(|module| !module.is_test) {
            names.file.clone_from(&module.path);
            names.visit_file(&syntax(&module.path));
        }
        names
    }

    fn function(&mut self, attributes: &[Attribute], name: &syn::Ident) {
        let Some(words) = documentation(attributes) else { return };
        self.documented += 1;
        if !begins_with_a_verb(&words) {
            self.without_verb.push(format!("{} {name}: {}", self.file, words.trim()));
        }
    }
}

/// Returns the first line of an item's documentation.
fn documentation(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Words that begin sentences and end in `s`, but are not verbs.
const NO_VERBS: [&str; 16] = [
    "As",
    "Always",
    "This",
    "Whereas",
    "Besides",
    "Units",
    "Seconds",
    "Milliseconds",
    "Microseconds",
    "Its",
    "Less",
    "Is",
    "Has",
    "Was",
    "Does",
    "Limits",
];

/// Returns whether a sentence begins with a verb in the third person, judged by its ending.
fn begins_with_a_verb(sentence: &str) -> bool {
    let word = sentence.trim().split([' ', ',', '.', ':']).next().unwrap_or_default();
    let is_word = word.starts_with(|c: char| c.is_ascii_uppercase());
    is_word && word.ends_with('s') && !word.ends_with("ss") && !NO_VERBS.contains(&word)
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("doc")
            && list.is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, None),
            Item::Impl(item) => (&item.attrs, None),
            Item::Mod(item) => (&item.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if is_of_tests(attributes) {
            return;
        }
        if let Some(name) = name {
            let files = self.types.entry(name.to_string()).or_default();
            // A file may define one type twice, in modules for two features. This counts as one
            // type.
            files.insert(self.file.clone());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.attrs, &function.sig.ident);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_of_tests(&function.attrs) {
            self.function(&function.attrs, &function.sig.ident);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.function(&function.attrs, &function.sig.ident);
        if is_hidden(&function.attrs) {
            self.hidden_methods.push(format!("{} {}", self.file, function.sig.ident));
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[test]
fn verbs_in_the_third_person_are_recognised() {
    for sentence in ["Returns the cost.", "Decides, waiting for the store.", "Passes."] {
        assert!(begins_with_a_verb(sentence), "{sentence}");
    }
    for sentence in ["Whether it is open.", "As `new`.", "Less than one.", "the cost", "The cost."]
    {
        assert!(!begins_with_a_verb(sentence), "{sentence}");
    }
}
