//! YAML text to a tree in which every value knows its place. Size, depth and what aliases expand to are bounded.

use crate::report::{Position, Report};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use std::{borrow::Cow, collections::HashMap};

/// Longest text that is read, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// Deepest nesting of lists and mappings; a descriptor needs 8.
const MAX_DEPTH: usize = 32;
/// Most values in a tree, those from aliases counted each time; a slice of a thousand functions has fewer.
const MAX_NODES: usize = 200_000;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub at: Position,
    pub value: Value,
}

/// A value by the core schema of YAML 1.2.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    /// A number that is no 64-bit integer, as written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<Field>),
}

/// A key of a mapping with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub key: String,
    pub key_at: Position,
    pub node: Node,
}

impl Value {
    /// What a message calls it.
    pub fn phrase(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(value) => format!("the truth value {value}"),
            Self::Integer(value) => format!("the number {value}"),
            Self::Number(text) => format!("the number {}", excerpt(text)),
            Self::Text(text) => format!("the text {:?}", excerpt(text)),
            Self::List(_) => "a list".into(),
            Self::Mapping(_) => "a mapping".into(),
        }
    }

    /// How a scalar that is no text would be written as one.
    pub fn as_written(&self) -> Option<String> {
        match self {
            Self::Bool(value) => Some(value.to_string()),
            Self::Integer(value) => Some(value.to_string()),
            Self::Number(text) => Some(excerpt(text).into_owned()),
            _ => None,
        }
    }
}

/// At most 40 characters of a text, for a message.
pub fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

/// A list or mapping that is still open.
struct Open {
    at: Position,
    anchor: usize,
    value: Collection,
}

enum Collection {
    List(Vec<Node>),
    /// The fields so far, and the key whose value comes next. A key that is repeated is reported and its value dropped.
    Mapping {
        fields: Vec<Field>,
        seen: HashMap<String, Position>,
        key: Option<(String, Position)>,
    },
}

/// Builds the tree from the parser's events.
struct Builder<'r> {
    report: &'r mut Report,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, Extent)>,
    nodes: usize,
    root: Option<Node>,
}

/// Reads the one document of a text. What cannot be read is reported, and then there may be no tree.
pub fn read(text: &str, report: &mut Report) -> Option<Node> {
    let start = Position::default();
    if text.len() > MAX_TEXT {
        report.error(start, format!("the file is larger than {MAX_TEXT} bytes"), "keep large files in the image");
        return None;
    }
    let mut builder = Builder { report, open: Vec::new(), anchors: HashMap::new(), nodes: 0, root: None };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser::new_from_str(text);
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let (reason, remedy) = explain(&error, text);
                builder.report.error(place(error.marker()), reason, remedy);
                return None;
            }
        };
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    let reason = "a second document begins here";
                    builder.report.error(position(&span), reason, "put each slice into a file of its own");
                    return builder.root;
                }
            }
            Event::StreamEnd => break,
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            event => builder.take(event, position(&span))?,
        }
    }
    if builder.root.is_none() {
        builder.report.error(start, "the file is empty", "begin with apiVersion: kaista.dev/v1alpha1");
    }
    builder.root
}

impl Builder<'_> {
    /// Takes one event; none if the text is not worth going on with.
    fn take(&mut self, event: Event<'_>, at: Position) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.scalar(text, style, tag.as_deref(), at);
                self.add(Node { at, value }, anchor, 1)
            }
            Event::Alias(id) => match self.anchors.get(&id).cloned() {
                Some((_, extent)) if self.open.len() + extent.depth > MAX_DEPTH => self.too_deep(at),
                Some((node, extent)) => self.add(Node { at, value: node.value }, 0, extent.nodes),
                None => {
                    let remedy = "an alias can only name an anchor that is complete before it";
                    self.report.error(at, "the alias refers to a value that contains it", remedy);
                    None
                }
            },
            Event::SequenceStart(anchor, tag) => self.begin(Collection::List(Vec::new()), anchor, tag.as_deref(), at),
            Event::MappingStart(anchor, tag) => {
                let value = Collection::Mapping { fields: Vec::new(), seen: HashMap::new(), key: None };
                self.begin(value, anchor, tag.as_deref(), at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => Some(()),
        }
    }

    fn begin(&mut self, value: Collection, anchor: usize, tag: Option<&Tag>, at: Position) -> Option<()> {
        self.refuse_tag(tag, &["seq", "map"], at);
        if self.open.len() == MAX_DEPTH {
            return self.too_deep(at);
        }
        self.open.push(Open { at, anchor, value });
        Some(())
    }

    fn too_deep(&mut self, at: Position) -> Option<()> {
        let reason = format!("values are nested more than {MAX_DEPTH} deep");
        self.report.error(at, reason, "a descriptor needs no such depth; look for a stray bracket or indentation");
        None
    }

    fn end(&mut self) -> Option<()> {
        let Open { at, anchor, value } = self.open.pop()?;
        let value = match value {
            Collection::List(items) => Value::List(items),
            Collection::Mapping { fields, .. } => Value::Mapping(fields),
        };
        self.add(Node { at, value }, anchor, 1)
    }

    /// Puts a finished value where it belongs; `cost` is how many values it adds to those counted already.
    fn add(&mut self, node: Node, anchor: usize, cost: usize) -> Option<()> {
        self.nodes += cost;
        if self.nodes > MAX_NODES {
            let reason = format!("the file holds more than {MAX_NODES} values, those from aliases included");
            self.report.error(node.at, reason, "write fewer, or let aliases stand for less");
            return None;
        }
        if anchor != 0 {
            let extent = extent(&node);
            self.anchors.insert(anchor, (node.clone(), extent));
        }
        match self.open.last_mut().map(|open| &mut open.value) {
            None => self.root = Some(node),
            Some(Collection::List(items)) => items.push(node),
            Some(Collection::Mapping { key: key @ None, .. }) => *key = Some(key_of(node, self.report)?),
            Some(Collection::Mapping { fields, seen, key }) => {
                let (key, key_at) = key.take()?;
                match seen.get(&key) {
                    None => {
                        seen.insert(key.clone(), key_at);
                        fields.push(Field { key, key_at, node });
                    }
                    Some(first) => {
                        let reason = format!("{:?} is given twice", excerpt(&key));
                        self.report.error(key_at, reason, format!("the first is on line {}", first.line));
                    }
                }
            }
        }
        Some(())
    }

    fn scalar(&mut self, text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Value {
        self.refuse_tag(tag, &["str", "int", "bool", "float", "null"], at);
        let forced_text = tag.is_some_and(|t| t.is_yaml_core_schema() && t.suffix == "str");
        if style != ScalarStyle::Plain || forced_text { Value::Text(text.into_owned()) } else { plain(&text) }
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, known: &[&str], at: Position) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && known.contains(&tag.suffix.as_str()))
        {
            self.report.error(at, format!("the tag {} means nothing here", excerpt(&tag.to_string())), "take it away");
        }
    }
}

fn key_of(node: Node, report: &mut Report) -> Option<(String, Position)> {
    match node.value {
        Value::Text(key) => Some((key, node.at)),
        Value::Null => Some((String::new(), node.at)),
        value => match value.as_written() {
            Some(key) => Some((key, node.at)),
            None => {
                report.error(
                    node.at,
                    format!("{} cannot be a key", value.phrase()),
                    "write a plain name before the colon",
                );
                None
            }
        },
    }
}

/// A plain scalar by the core schema (YAML 1.2.2, 10.3.2).
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => {
            let based = |prefix, base| text.strip_prefix(prefix).and_then(|t| i64::from_str_radix(t, base).ok());
            let integer = based("0x", 16).or_else(|| based("0o", 8)).or_else(|| text.parse().ok());
            match integer {
                Some(value) => Value::Integer(value),
                None if is_number(text) => Value::Number(text.into()),
                None => Value::Text(text.into()),
            }
        }
    }
}

fn is_number(text: &str) -> bool {
    let unsigned = text.trim_start_matches(['-', '+']);
    let special = matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN");
    special || (unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') && text.parse::<f64>().is_ok())
}

/// How large a tree is.
#[derive(Clone, Copy)]
struct Extent {
    nodes: usize,
    /// Lists and mappings within each other.
    depth: usize,
}

fn extent(node: &Node) -> Extent {
    let around = |inner: Extent, child: &Node| {
        let Extent { nodes, depth } = extent(child);
        Extent { nodes: inner.nodes + nodes, depth: inner.depth.max(depth + 1) }
    };
    match &node.value {
        Value::List(items) => items.iter().fold(Extent { nodes: 1, depth: 1 }, around),
        Value::Mapping(fields) => fields.iter().map(|f| &f.node).fold(Extent { nodes: 1, depth: 1 }, around),
        _ => Extent { nodes: 1, depth: 0 },
    }
}

fn place(marker: &saphyr_parser::Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1, length: 1 }
}

/// The part of a span that is on its first line.
fn position(span: &Span) -> Position {
    let on_one_line = span.start.line() == span.end.line();
    let length = if on_one_line { span.end.col().saturating_sub(span.start.col()).max(1) } else { 1 };
    Position { length, ..place(&span.start) }
}

/// What the parser says, and what most often is the cause.
fn explain(error: &ScanError, text: &str) -> (String, String) {
    let reason = format!("this is no YAML: {}", error.info());
    let line = text.lines().nth(error.marker().line().saturating_sub(1)).unwrap_or_default();
    let indentation = &line[..line.len() - line.trim_start().len()];
    let remedy = if indentation.contains('\t') {
        "indent with spaces; YAML allows no tabs there"
    } else if error.info().contains("anchor") {
        "define it with & before it is used with *"
    } else if line.contains(": ") && line.matches(": ").count() > 1 && !line.contains('{') {
        "put a value that contains a colon into quotes"
    } else {
        "check the indentation, brackets and quotes here and on the line before; other mistakes show once this is mended"
    };
    (reason, remedy.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> String {
        let mut report = Report::default();
        read(text, &mut report);
        report.to_string()
    }

    fn value(text: &str) -> Value {
        let mut report = Report::default();
        let node = read(text, &mut report).unwrap();
        assert!(report.is_ok(), "{report}");
        node.value
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        assert_eq!(value("yes"), Value::Text("yes".into()));
        assert_eq!(value("0x10"), Value::Integer(16));
        assert_eq!(value("'1'"), Value::Text("1".into()));
        assert_eq!(value("!!str 1"), Value::Text("1".into()));
        assert_eq!(value("1.50"), Value::Number("1.50".into()));
        assert_eq!(value("1.2.3"), Value::Text("1.2.3".into()));
        assert_eq!(value("nan"), Value::Text("nan".into()));
        assert_eq!(value("~"), Value::Null);
    }

    #[test]
    fn places_are_counted_from_one_and_in_characters() {
        let mut report = Report::default();
        let Value::Mapping(fields) = read("ä: [x, yz]\n", &mut report).unwrap().value else { panic!() };
        let Value::List(items) = &fields[0].node.value else { panic!() };
        assert_eq!(items[1].at, Position { line: 1, column: 8, length: 2 });
    }

    #[test]
    fn an_alias_is_as_good_as_the_value_itself() {
        assert_eq!(value("[&a {b: 1}, *a]").phrase(), "a list");
        assert_eq!(
            problems("&a [*a]"),
            "1:5: error: the alias refers to a value that contains it; an alias can only name an anchor that is complete before it"
        );
    }

    #[test]
    fn what_grows_without_bound_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..20 {
            let before = level - 1;
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", "));
        }
        assert!(problems(&bomb).contains("more than 200000 values"));
        assert!(problems(&"- ".repeat(10_000)).contains("nested more than 32 deep"));
        assert!(problems(&"[".repeat(100)).contains("nested more than 32 deep"));
        let mut stairs = String::from("a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n");
        for level in 1..100 {
            stairs += &format!("a{level}: &a{level} [[[[[[[[[[*a{}]]]]]]]]]]\n", level - 1);
        }
        assert!(
            problems(&stairs).starts_with("4:19: error: values are nested more than 32 deep"),
            "{}",
            problems(&stairs)
        );
        assert!(problems(&" ".repeat(MAX_TEXT + 1)).contains("larger than"));
    }

    #[test]
    fn what_is_no_single_document_is_reported() {
        assert!(problems("").contains("the file is empty"));
        assert!(problems("a: 1\na: 2\n").starts_with("2:1: error: \"a\" is given twice; the first is on line 1"));
        assert!(problems("a: 1\n---\nb: 2\n").starts_with("2:1: error: a second document begins here"));
        assert!(problems("a:\n\t- b\n").contains("allows no tabs"));
        assert!(problems("a: !secret b\n").contains("the tag !secret means nothing here"));
        assert!(problems("[a]: 1").contains("a list cannot be a key"));
    }
}
