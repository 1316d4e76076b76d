//! Conditions and values of rules: expressions of CEL over the descriptors of a request.
//!
//! `descriptors` is a list of maps. Most expressions look up one entry, such as
//! `descriptors[0]['method'] == 'POST'`. These are evaluated here. The interpreter evaluates all
//! others, which is slower because it needs the descriptors as values of its own.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::thread;

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, Env, ExecutionError, ParseErrors, Program, Value};
use rl_core::client_ip::ClientIp;

use crate::request::Descriptor;

/// The name of the list of descriptors.
const DESCRIPTORS: &str = "descriptors";

/// The environment that all expressions share, because creating it takes long.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// An expression that was compiled.
pub(super) enum Expression {
    /// The value of an entry: `descriptors[0].key`, or with `['key']`.
    Entry(EntryPath),
    /// Whether the value of an entry is this text: `descriptors[0].key == 'text'`.
    Equals(EntryPath, Box<str>),
    /// Whether the value of an entry is another text.
    Differs(EntryPath, Box<str>),
    Program(Program),
}

/// The place of a value in the descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryPath {
    pub(super) descriptor: usize,
    pub(super) key: Box<str>,
}

/// The descriptors of a request, over which expressions are evaluated.
pub(super) struct Evaluation<'a> {
    descriptors: &'a [Descriptor],
    context: OnceCell<Context<'static, 'static>>,
}

/// The maximum length of an expression, in bytes. It bounds the stack of its evaluation.
const MAX_LEN: usize = 1_000;

/// The maximum number of levels of an expression: of brackets, and of conditions after `?`.
const MAX_LEVELS: usize = 24;

/// The stack of the parser, which takes about 150 kB for each level without optimization.
const STACK: usize = 64 << 20;

/// Compiles a text with a stack that its length and its levels cannot exhaust, which would end the
/// process.
fn compile(text: &str) -> Result<Result<Program, ParseErrors>, String> {
    let (mut level, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' | b'?' => level += 1,
            b')' | b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(level);
    }
    if text.len() > MAX_LEN || deepest > MAX_LEVELS {
        let begin: String = text.chars().take(40).collect();
        return Err(format!(
            "{begin:?}…: expected at most {MAX_LEN} bytes, and {MAX_LEVELS} levels of brackets"
        ));
    }
    let compiled = thread::scope(|scope| {
        let parser = thread::Builder::new().stack_size(STACK);
        let parser = parser.spawn_scoped(scope, || ENVIRONMENT.compile(text));
        parser.map(|parser| parser.join())
    });
    let compiled = compiled.map_err(|error| format!("no thread can be started: {error}"))?;
    compiled.map_err(|_| format!("{text:?}: expected an expression of CEL"))
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is no expression, or uses a variable or function that does not
    /// exist.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let program = compile(text)?.map_err(|errors| {
            let first = errors.errors.first();
            let place = first.map(|error| format!(", column {}: {}", error.pos.1, error.msg));
            format!("{text:?}{}: expected an expression of CEL", place.unwrap_or_default())
        })?;
        let mut unknown = BTreeSet::new();
        variables(&program.expression().expr, &mut vec![DESCRIPTORS.to_owned()], &mut unknown);
        if let Some(name) = unknown.first() {
            return Err(format!("{text:?}: variable {name:?}: expected `{DESCRIPTORS}`"));
        }
        let references = program.references();
        let functions: BTreeSet<_> = references.functions().into_iter().collect();
        if let Some(name) = functions.into_iter().find(|name| !is_function(name)) {
            return Err(format!("{text:?}: function {name:?}: expected a function of CEL"));
        }
        Ok(match Self::lookup(&program.expression().expr) {
            Some(lookup) => lookup,
            None => Self::Program(program),
        })
    }

    /// Returns the lookup of an entry that an expression consists of.
    fn lookup(expression: &Expr) -> Option<Self> {
        if let Some(entry) = EntryPath::of(expression) {
            return Some(Self::Entry(entry));
        }
        let Expr::Call(CallExpr { func_name, target: None, args }) = expression else {
            return None;
        };
        let [entry, text] = args.as_slice() else { return None };
        let (entry, text) = (EntryPath::of(&entry.expr)?, text_of(&text.expr)?.into());
        match func_name.as_str() {
            operators::EQUALS => Some(Self::Equals(entry, text)),
            operators::NOT_EQUALS => Some(Self::Differs(entry, text)),
            _ => None,
        }
    }

    /// Returns whether the expression is true. An expression that cannot be evaluated, such as one
    /// of a missing entry, is not true.
    pub(super) fn holds(&self, evaluation: &Evaluation<'_>) -> bool {
        match self {
            Self::Entry(_) => false,
            Self::Equals(entry, text) => evaluation.entry(entry) == Some(&**text),
            Self::Differs(entry, text) => {
                evaluation.entry(entry).is_some_and(|value| *value != **text)
            }
            Self::Program(program) => {
                matches!(evaluation.value_of(program), Some(Value::Bool(true)))
            }
        }
    }

    /// Appends the value of the expression to the identifier of a subject. Returns `None` if the
    /// expression cannot be evaluated, or its value is a list or a map.
    pub(super) fn append(&self, evaluation: &Evaluation<'_>, id: &mut String) -> Option<()> {
        use fmt::Write;

        let value = match self {
            Self::Entry(entry) => {
                append_entry(&entry.key, evaluation.entry(entry)?, id);
                return Some(());
            }
            Self::Equals(entry, _) | Self::Differs(entry, _) => {
                evaluation.entry(entry)?;
                self.holds(evaluation).to_string()
            }
            Self::Program(program) => match evaluation.value_of(program)? {
                Value::String(text) => text.to_string(),
                Value::Int(number) => number.to_string(),
                Value::UInt(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                Value::Bool(value) => value.to_string(),
                Value::Null => "null".to_owned(),
                _ => return None,
            },
        };
        write!(id, "{}={value}", value.len()).ok()
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(entry) => write!(f, "{entry:?}"),
            Self::Equals(entry, text) => write!(f, "{entry:?} == {text:?}"),
            Self::Differs(entry, text) => write!(f, "{entry:?} != {text:?}"),
            Self::Program(_) => f.write_str("Program"),
        }
    }
}

impl EntryPath {
    /// Returns the entry that an expression looks up.
    fn of(expression: &Expr) -> Option<Self> {
        let (descriptor, key) = match expression {
            Expr::Select(select) if !select.test => (&select.operand.expr, select.field.as_str()),
            Expr::Call(call) => {
                let [map, key] = index_of(call)?;
                (&map.expr, text_of(&key.expr)?)
            }
            _ => return None,
        };
        let Expr::Call(call) = descriptor else { return None };
        let [list, place] = index_of(call)?;
        let (Expr::Ident(name), Expr::Literal(LiteralValue::Int(place))) =
            (&list.expr, &place.expr)
        else {
            return None;
        };
        let descriptor = usize::try_from(*place.inner()).ok()?;
        (name == DESCRIPTORS).then(|| Self { descriptor, key: key.into() })
    }
}

impl<'a> Evaluation<'a> {
    pub(super) const fn new(descriptors: &'a [Descriptor]) -> Self {
        Self { descriptors, context: OnceCell::new() }
    }

    /// Returns the value of an entry: the last one if the descriptor has the key twice.
    pub(super) fn entry(&self, entry: &EntryPath) -> Option<&'a str> {
        let entries = &self.descriptors.get(entry.descriptor)?.entries;
        let found = entries.iter().rev().find(|(key, _)| **key == *entry.key);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the value of a program; `None` if it cannot be evaluated.
    fn value_of(&self, program: &Program) -> Option<Value> {
        // The values come from clients, so a fault of the interpreter must not end a call.
        let evaluate = || program.execute(self.context()).ok();
        catch_unwind(AssertUnwindSafe(evaluate)).ok().flatten()
    }

    fn context(&self) -> &Context<'static, 'static> {
        self.context.get_or_init(|| {
            let maps = self.descriptors.iter().map(|descriptor| {
                let entries = descriptor.entries.iter().cloned();
                Value::from(entries.collect::<HashMap<String, String>>())
            });
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            context.add_variable_from_value(DESCRIPTORS, maps.collect::<Vec<_>>());
            context
        })
    }
}

/// Returns the operands of `operand[operand]`.
fn index_of(call: &CallExpr) -> Option<&[IdedExpr; 2]> {
    let is_index = call.func_name == operators::INDEX && call.target.is_none();
    call.args.as_slice().try_into().ok().filter(|_| is_index)
}

fn text_of(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(LiteralValue::String(text)) => Some(text),
        _ => None,
    }
}

/// Adds the variables of an expression that are not `known`.
fn variables(expression: &Expr, known: &mut Vec<String>, unknown: &mut BTreeSet<String>) {
    match expression {
        Expr::Unspecified | Expr::Literal(_) => {}
        Expr::Ident(name) => {
            if !name.starts_with('@') && !known.contains(name) {
                unknown.insert(name.clone());
            }
        }
        Expr::Select(select) => variables(&select.operand.expr, known, unknown),
        Expr::Call(call) => {
            for operand in call.target.iter().map(|target| &**target).chain(&call.args) {
                variables(&operand.expr, known, unknown);
            }
        }
        Expr::List(list) => {
            for element in &list.elements {
                variables(&element.expr, known, unknown);
            }
        }
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    variables(&entry.key.expr, known, unknown);
                    variables(&entry.value.expr, known, unknown);
                }
            }
        }
        Expr::Struct(structure) => {
            unknown.insert(structure.type_name.clone());
        }
        Expr::Comprehension(all) => {
            variables(&all.iter_range.expr, known, unknown);
            variables(&all.accu_init.expr, known, unknown);
            let before = known.len();
            known.extend([all.iter_var.clone(), all.accu_var.clone()]);
            known.extend(all.iter_var2.clone());
            for part in [&all.loop_cond, &all.loop_step, &all.result] {
                variables(&part.expr, known, unknown);
            }
            known.truncate(before);
        }
    }
}

/// Returns whether an operator or function exists. A known function that is called without its
/// arguments fails with another error than an unknown function.
fn is_function(name: &str) -> bool {
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return true;
    }
    let context = Context::with_env(Arc::clone(&ENVIRONMENT));
    let text = || IdedExpr { id: 2, expr: Expr::Literal(LiteralValue::String("".into())) };
    let is_known = |target| {
        let call = CallExpr { func_name: name.to_owned(), target, args: Vec::new() };
        let call = IdedExpr { id: 1, expr: Expr::Call(call) };
        !matches!(Value::resolve(&call, &context), Err(ExecutionError::UndeclaredReference(_)))
    };
    is_known(None) || is_known(Some(Box::new(text())))
}

/// Appends an entry to the identifier of a subject. The length of its value keeps subjects distinct
/// whatever a client writes into the values.
pub(super) fn append_entry(key: &str, value: &str, id: &mut String) {
    let address = counted_address(key, value);
    let value = address.as_deref().unwrap_or(value);
    for text in [key, ":", &value.len().to_string(), "=", value] {
        id.push_str(text);
    }
}

/// Returns the text of the address by which a client is counted, if the entry has one. A client
/// usually has a network of IPv6 addresses, which counts as one.
pub(super) fn counted_address(key: &str, value: &str) -> Option<String> {
    let address: IpAddr = value.parse().ok().filter(|_| key == "remote_address")?;
    ClientIp::peer().resolve(Some(address), &[]).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors() -> Vec<Descriptor> {
        let entries = |list: &[(&str, &str)]| {
            let entries = list.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            Descriptor { entries: entries.collect(), ..Descriptor::default() }
        };
        vec![
            entries(&[
                ("req.method", "POST"),
                ("user_id", "alice"),
                ("twice", "1"),
                ("twice", "2"),
            ]),
            entries(&[("path", "/api/v1")]),
        ]
    }

    #[test]
    fn conditions_hold_only_if_they_can_be_evaluated() {
        let descriptors = descriptors();
        for (text, is_lookup, expected) in [
            ("descriptors[0]['req.method'] == 'POST'", true, true),
            ("descriptors[0]['req.method'] != 'POST'", true, false),
            ("descriptors[0].user_id == \"alice\"", true, true),
            ("descriptors[0].twice == '2'", true, true),
            ("descriptors[0].missing != 'x'", true, false),
            ("descriptors[7].user_id == 'alice'", true, false),
            ("'POST' == descriptors[0]['req.method']", false, true),
            ("descriptors[0]['twice'] == '2' && descriptors[1].path != 'x'", false, true),
            ("descriptors[1].path.startsWith('/api/')", false, true),
            ("descriptors[1].path.matches('^/api/v[0-9]+$')", false, true),
            ("descriptors[1]['path'].contains('v1')", false, true),
            ("descriptors.exists(d, 'user_id' in d && d['user_id'] == 'alice')", false, true),
            ("descriptors.exists(d, d['user_id'] == 'bob')", false, false),
            ("has(descriptors[0].user_id)", false, true),
            ("size(descriptors) == 2", false, true),
            ("descriptors[0].user_id.x == 'alice'", false, false),
            ("descriptors[0].user_id in ['alice', 'bob']", false, true),
            ("int(descriptors[0].twice) > 1", false, true),
            ("int(descriptors[0].user_id) > 1", false, false),
            ("'text'", false, false),
            ("descriptors[0].user_id", true, false),
        ] {
            let compiled = Expression::new(text).unwrap();
            assert_eq!(!matches!(compiled, Expression::Program(_)), is_lookup, "{text}");
            assert_eq!(compiled.holds(&Evaluation::new(&descriptors)), expected, "{text}");
            // The interpreter agrees.
            let program = Expression::Program(Program::compile(text).unwrap());
            assert_eq!(program.holds(&Evaluation::new(&descriptors)), expected, "{text}");
        }
    }

    #[test]
    fn values_become_a_part_of_the_subject() {
        let descriptors = descriptors();
        for (text, expected) in [
            ("descriptors[0].user_id", Some("user_id:5=alice")),
            ("descriptors[0].user_id + '@' + descriptors[1].path", Some("13=alice@/api/v1")),
            ("size(descriptors)", Some("1=2")),
            ("descriptors[0].user_id == 'alice'", Some("4=true")),
            ("descriptors[0].missing == 'alice'", None),
            ("descriptors[0]", None),
            ("descriptors[0].missing", None),
        ] {
            let mut id = String::new();
            let compiled = Expression::new(text).unwrap();
            let appended = compiled.append(&Evaluation::new(&descriptors), &mut id);
            assert_eq!(appended.map(|()| id.as_str()), expected, "{text}");
        }
    }

    #[test]
    fn unknown_variables_and_functions_are_refused_at_load() {
        for (text, expected) in [
            ("descriptors[0].a ==", "expected an expression of CEL"),
            ("user_id == 'a'", "variable \"user_id\": expected `descriptors`"),
            ("limit.name == 'a'", "variable \"limit\""),
            ("descriptors.exists(d, e == d)", "variable \"e\""),
            ("descriptors[0].a.startswith('x')", "function \"startswith\""),
            ("frobnicate(descriptors)", "function \"frobnicate\""),
        ] {
            let error = Expression::new(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn text_that_is_no_expression_is_refused() {
        let texts = [
            "",
            " ",
            "'",
            "\"",
            "a..b",
            "descriptors[",
            "descriptors[0",
            "{",
            "}",
            "(",
            "@",
            "'\\x'",
            "99999999999999999999",
            "b'\\xf'",
            "r'",
            "a ? b",
            "\u{0}",
            "é",
            "//",
            "'\n'",
            "descriptors.map(1, 2)",
            "descriptors.exists(d)",
            "has(1)",
            "Message{a: 1}",
        ];
        let accepted = texts.iter().filter(|text| Expression::new(text).is_ok());
        assert_eq!(accepted.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
