//! The descriptions for clients that ask the reflection service are those of the messages.

use std::collections::BTreeMap;
use std::fmt::Debug;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::grpc::messages::{Code, Unit};
use crate::grpc::services::DESCRIPTIONS;

const SOURCE: &str = include_str!("../messages.rs");

/// The fields of a message: the number of each, and its attributes as `messages.rs` writes them.
type Fields = BTreeMap<String, (i32, String)>;

fn set() -> FileDescriptorSet {
    FileDescriptorSet::decode(DESCRIPTIONS).unwrap()
}

/// Returns the messages of `messages.rs`, by their names.
fn source_messages() -> BTreeMap<String, Fields> {
    let mut messages = BTreeMap::<_, Fields>::new();
    let (mut message, mut attributes) = (None, None);
    for line in SOURCE.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = rest.trim_end_matches(" {").to_owned();
            messages.insert(name.clone(), Fields::new());
            message = Some(name);
        } else if let Some(rest) = line.strip_prefix("#[prost(") {
            let (kind, tag) = rest.trim_end_matches(")]").split_once(", tag = ").unwrap();
            attributes = Some((tag.trim_matches('"').parse().unwrap(), kind.to_owned()));
        } else if let (Some(rest), Some(of_field)) = (line.strip_prefix("pub "), attributes.take())
        {
            let name = rest.split(':').next().unwrap().to_owned();
            messages.get_mut(message.as_ref().unwrap()).unwrap().insert(name, of_field);
        }
    }
    messages
}

/// Returns the attributes of a field, as `messages.rs` writes them.
fn attributes(field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::String => "string",
        Type::Message => "message",
        Type::Uint32 => "uint32",
        Type::Uint64 => "uint64",
        Type::Bool => "bool",
        Type::Bytes => "bytes = \"vec\"",
        Type::Enum => {
            let name = field.type_name().rsplit('.').next().unwrap();
            return format!("enumeration = \"{}\"", if name == "Code" { name } else { "Unit" });
        }
        other => panic!("{other:?}"),
    };
    match (field.label(), field.r#type()) {
        (Label::Repeated, _) => format!("{kind}, repeated"),
        (_, Type::Message) => format!("{kind}, optional"),
        _ => kind.to_owned(),
    }
}

/// Adds a described message, and those inside of it.
fn add(messages: &mut BTreeMap<String, Fields>, message: &DescriptorProto) {
    let field = |field: &FieldDescriptorProto| {
        (field.name().to_owned(), (field.number(), attributes(field)))
    };
    let fields = message.field.iter().map(field).collect();
    assert!(messages.insert(message.name().to_owned(), fields).is_none());
    message.nested_type.iter().for_each(|inner| add(messages, inner));
}

fn values(of: &EnumDescriptorProto) -> Vec<(String, i32)> {
    of.value.iter().map(|value| (value.name().to_owned(), value.number())).collect()
}

/// Returns the names and numbers of values, with names in the form of the descriptions.
fn named<T: Debug + Into<i32>>(values: impl IntoIterator<Item = T>) -> Vec<(String, i32)> {
    let named = |value: T| {
        let mut name = String::new();
        for letter in format!("{value:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        (name, value.into())
    };
    values.into_iter().map(named).collect()
}

#[test]
fn the_descriptions_have_the_fields_of_the_messages() {
    let mut described = BTreeMap::new();
    for file in set().file.iter().filter(|file| !file.package().starts_with("google.")) {
        file.message_type.iter().for_each(|message| add(&mut described, message));
    }
    // The texts of clients need not be UTF-8, so their bytes are read; both types have one form.
    for (_, kind) in described.get_mut("Entry").unwrap().values_mut() {
        assert_eq!(kind, "string");
        *kind = "bytes = \"vec\"".to_owned();
    }
    assert_eq!(described, source_messages());
    assert!(described.len() >= 12, "{described:?}");
}

#[test]
fn the_descriptions_have_the_values_of_the_enumerations() {
    use Unit::{Day, Hour, Minute, Month, Second, Unknown, Week, Year};
    let mut found = 0;
    for file in set().file {
        let inner = file.message_type.iter().flat_map(|message| {
            let inner = message.nested_type.iter().flat_map(|inner| &inner.enum_type);
            message.enum_type.iter().chain(inner)
        });
        for one in file.enum_type.iter().chain(inner) {
            let expected = match one.name() {
                "RateLimitUnit" => named([Unknown, Second, Minute, Hour, Day, Month, Year]),
                "Unit" => named([Unknown, Second, Minute, Hour, Day, Month, Year, Week]),
                "Code" => named([Code::Unknown, Code::Ok, Code::OverLimit]),
                _ => continue,
            };
            assert_eq!(values(one), expected, "{}", one.name());
            found += 1;
        }
    }
    assert_eq!(found, 3);
}
