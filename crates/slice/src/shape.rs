//! Checks of shape, by the JSON Schema: unknown, missing and wrong fields, each reported where it is, and a tree that can
//! be read all the same, so that the checks of sense go on behind them.

use crate::{
    format::{check_format, check_object},
    places::{Path, Places, Step},
    quantity::ValueError,
    report::{Position, Report},
    tree::{Field, Node, Value, excerpt},
    wording::{accepts, any_of, choices, expects, has_type, is_free_text, nearest, noun_of, required},
};
use serde_json::{Map, Value as Json, json};

/// Holds a tree against a JSON Schema; gives the tree as JSON that fits the schema, with stand-ins for what is wrong.
pub fn fit(schema: &Json, tree: &Node, report: &mut Report) -> (Json, Places) {
    let mut walk = Walk { schema, report, places: Places::default(), path: Path::new() };
    let value = walk.value(schema, tree).unwrap_or_else(|| walk.stand_in(schema));
    (value, walk.places)
}

struct Walk<'a> {
    schema: &'a Json,
    report: &'a mut Report,
    places: Places,
    path: Path,
}

impl<'a> Walk<'a> {
    /// The value of a node as the schema wants it; none, and reported, if it is something else.
    fn value(&mut self, schema: &'a Json, node: &Node) -> Option<Json> {
        self.places.note_value(&self.path, node.at);
        let value = if self.report.is_full() { None } else { self.sound_value(schema, node) };
        if value.is_none() {
            self.places.note_fault(&self.path);
        }
        value
    }

    fn sound_value(&mut self, schema: &'a Json, node: &Node) -> Option<Json> {
        let (definition, schema) = self.resolve(schema);
        let options = self.alternatives(schema);
        let Some(schema) = options.iter().find(|s| accepts(s, &node.value)).copied() else {
            self.wrong_type(&options, node);
            return None;
        };
        match &node.value {
            Value::Text(text) => self.text(schema, text, node.at),
            Value::Integer(number) => self.integer(schema, *number, node.at),
            Value::List(items) => self.list(schema, items, node.at),
            Value::Mapping(fields) => self.mapping(definition, schema, fields, node.at),
            Value::Null | Value::Bool(_) | Value::Number(_) => None,
        }
    }

    /// Follows a reference to a definition.
    fn resolve(&self, schema: &'a Json) -> (Option<&'a str>, &'a Json) {
        let name = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/"));
        match name {
            Some(name) => (Some(name), &self.schema["$defs"][name]),
            None => (None, schema),
        }
    }

    /// The schemas of which a value has to fit one; `null`, which stands for an absent field, left out.
    fn alternatives(&self, schema: &'a Json) -> Vec<&'a Json> {
        match schema["anyOf"].as_array() {
            Some(options) => {
                let resolved = options.iter().map(|s| self.resolve(s).1);
                resolved.filter(|s| s["type"] != "null").collect()
            }
            None => vec![schema],
        }
    }

    fn text(&mut self, schema: &Json, text: &str, at: Position) -> Option<Json> {
        let choices = choices(schema);
        if !choices.is_empty() {
            if choices.contains(&text) {
                return Some(text.into());
            }
            let (reason, remedy) = self.unknown_choice(text, &choices);
            self.report.error(at, reason, remedy);
            return None;
        }
        match check_format(schema["format"].as_str().unwrap_or_default(), text) {
            Ok(()) => Some(text.into()),
            Err(ValueError { reason, remedy }) => {
                self.report.error(at, format!("{}: {reason}", self.subject()), remedy);
                None
            }
        }
    }

    fn unknown_choice(&self, text: &str, choices: &[&str]) -> (String, String) {
        let is_link_kind = matches!(&self.path[..], [_, Step::Field(list), _, _] if list == "links");
        if is_link_kind && text == "switched" {
            let reason = "links of kind switched are not available yet";
            return (reason.into(), "write auto (or take kind away), direct, shared-records or zero-copy".into());
        }
        let reason = format!("{:?} is no value of {}", excerpt(text), self.subject());
        let remedy = match nearest(text, choices.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("write {}", any_of(choices)),
        };
        (reason, remedy)
    }

    fn integer(&mut self, schema: &Json, number: i64, at: Position) -> Option<Json> {
        let least = schema["minimum"].as_i64().unwrap_or(0);
        let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
        if (least..=most).contains(&number) {
            return Some(number.into());
        }
        let which = if number < least { "small" } else { "large" };
        self.report.error(
            at,
            format!("{number} is too {which} for {}", self.subject()),
            format!("write {}", expects(schema)),
        );
        None
    }

    fn list(&mut self, schema: &'a Json, items: &[Node], at: Position) -> Option<Json> {
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let most = schema["maxItems"].as_u64().unwrap_or(u64::MAX);
        let count = items.len() as u64;
        if count < least || count > most {
            let wanted = match count {
                _ if least == most => format!("exactly {least}"),
                _ if count < least => format!("at least {least}"),
                _ => format!("at most {most}"),
            };
            let items = if count == 1 { "item" } else { "items" };
            let reason = format!("{} has {count} {items}", self.subject());
            self.report.error(at, reason, format!("give {wanted}"));
            return None;
        }
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            self.path.push(Step::Item(index));
            let value = self.value(&schema["items"], item);
            list.push(value.unwrap_or_else(|| self.stand_in(&schema["items"])));
            self.path.pop();
        }
        Some(list.into())
    }

    fn mapping(&mut self, definition: Option<&str>, schema: &'a Json, fields: &[Field], at: Position) -> Option<Json> {
        let Some(known) = schema["properties"].as_object() else { return Some(self.free_mapping(schema, fields)) };
        let mut object = Map::new();
        let noun = self.noun(definition, fields);
        for (name, field) in self.recognise(known, fields, &noun) {
            self.path.push(Step::Field(name.into()));
            self.places.note_key(&self.path, field.key_at);
            if field.node.value != Value::Null
                && let Some(value) = self.value(&known[name], &field.node)
            {
                object.insert(name.into(), value);
            }
            self.path.pop();
        }
        let before = self.report.mistakes().len();
        for name in required(schema) {
            self.require(name, &known[name], &mut object, &noun, at);
        }
        let complete = self.report.mistakes().len() == before;
        if let Err(ValueError { reason, remedy }) = check_object(definition.unwrap_or_default(), &object)
            && complete
        {
            // A form that was given but is wrong was reported already; only what nobody gave is missing.
            if self.forms_are_sound(schema) {
                self.report.error(at, reason, remedy);
            }
            return None;
        }
        Some(object.into())
    }

    /// Pairs each field of the text with the field of the schema that it is, or that it was meant to be.
    fn recognise<'f>(
        &mut self,
        known: &'a Map<String, Json>,
        fields: &'f [Field],
        noun: &str,
    ) -> Vec<(&'a str, &'f Field)> {
        let mut recognised: Vec<(&str, &Field)> = Vec::new();
        let exact = |field: &Field| known.get_key_value(&field.key).map(|(name, _)| name.as_str());
        recognised.extend(fields.iter().filter_map(|field| Some((exact(field)?, field))));
        for field in fields.iter().filter(|f| exact(f).is_none()) {
            if self.report.is_full() {
                break;
            }
            let near = nearest(&field.key, known.keys().map(String::as_str));
            let remedy = match near {
                Some(near) => format!("did you mean {near}?"),
                None => self.where_it_belongs(&field.key, known),
            };
            self.report.error(field.key_at, format!("{noun} has no field {:?}", excerpt(&field.key)), remedy);
            if let Some(near) = near
                && recognised.iter().all(|(name, _)| *name != near)
            {
                recognised.push((near, field));
            }
        }
        recognised
    }

    /// Advice for a field that resembles none of those known here.
    fn where_it_belongs(&self, key: &str, known: &Map<String, Json>) -> String {
        let definitions = self.schema["$defs"].as_object().into_iter().flatten();
        let holders = definitions.filter(|(_, schema)| schema["properties"].get(key).is_some());
        let holders: Vec<_> = holders.map(|(name, _)| noun_of(name)).collect();
        let fields: Vec<_> = known.keys().map(String::as_str).collect();
        match &holders[..] {
            [] => format!("take it away; its fields are {}", fields.join(", ")),
            holders => format!("that is a field of {}; check the indentation", holders.join(" and ")),
        }
    }

    /// Reports a required field that is not there, and puts a stand-in into its place.
    fn require(&mut self, name: &'a str, schema: &'a Json, object: &mut Map<String, Json>, noun: &str, at: Position) {
        if object.contains_key(name) {
            return;
        }
        self.path.push(Step::from(name));
        if self.places.note_fault(&self.path) {
            let schema = self.resolve(schema).1;
            let wanted: Vec<_> = self.alternatives(schema).into_iter().map(expects).collect();
            self.report.error(at, format!("{noun} has no {name}"), format!("add {name}: {}", wanted.join(" or ")));
        }
        object.insert(name.into(), self.stand_in(schema));
        self.path.pop();
    }

    /// Whether none of the fields of which an object needs one was found wrong by itself.
    fn forms_are_sound(&self, schema: &Json) -> bool {
        let forms = schema["oneOf"].as_array().into_iter().flatten().flat_map(required);
        let paths = forms.map(|name| {
            let mut path = self.path.clone();
            path.push(Step::from(name));
            path
        });
        paths.into_iter().all(|path| self.places.is_sound(&path))
    }

    /// A mapping whose keys are the user's: names to texts.
    fn free_mapping(&mut self, schema: &'a Json, fields: &[Field]) -> Json {
        let mut object = Map::new();
        for field in fields {
            self.path.push(Step::from(field.key.as_str()));
            self.places.note_key(&self.path, field.key_at);
            if let Some(value) = self.value(&schema["additionalProperties"], &field.node) {
                object.insert(field.key.clone(), value);
            }
            self.path.pop();
        }
        object.into()
    }

    fn wrong_type(&mut self, options: &[&Json], node: &Node) {
        let wanted: Vec<_> = options.iter().map(|s| expects(s)).collect();
        let wants = |kind: &str| options.iter().any(|s| has_type(s, kind));
        let remedy = match &node.value {
            value if options.iter().all(|s| is_free_text(s)) && value.as_written().is_some() => {
                format!("put it into quotes: \"{}\"", value.as_written().unwrap_or_default())
            }
            Value::Text(text) if wants("integer") && text.parse::<i64>().is_ok() => "take the quotes away".into(),
            Value::Text(text) if wants("array") => format!("put it into brackets: [{}]", excerpt(text)),
            _ => format!("write {}", wanted.join(" or ")),
        };
        self.report.error(node.at, format!("{} cannot be {}", self.subject(), node.value.phrase()), remedy);
    }

    /// What a message calls the value at hand: the name of its field.
    fn subject(&self) -> String {
        match &self.path[..] {
            [] => "the document".into(),
            [.., Step::Field(name)] => excerpt(name).into_owned(),
            [.., Step::Field(name), Step::Item(_)] => format!("an item of {}", excerpt(name)),
            [.., Step::Item(_)] => "an item".into(),
        }
    }

    /// What a message calls the mapping at hand: `function "upf"`.
    fn noun(&self, definition: Option<&str>, fields: &[Field]) -> String {
        let noun = match definition {
            Some(definition) => noun_of(definition),
            None if self.path.is_empty() => "the slice".into(),
            None => self.subject(),
        };
        let name = fields.iter().find_map(|f| match &f.node.value {
            Value::Text(name) if f.key == "name" => Some(name),
            _ => None,
        });
        match name {
            Some(name) => format!("{} {:?}", noun.trim_start_matches("a "), excerpt(name)),
            None => noun,
        }
    }

    /// The plainest value that fits a schema.
    fn stand_in(&self, schema: &Json) -> Json {
        let schema = match schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
            Some(name) => &self.schema["$defs"][name],
            None => schema,
        };
        if let Some(first) = schema["anyOf"].get(0) {
            return self.stand_in(first);
        }
        if let Some(first) = choices(schema).first() {
            return json!(first);
        }
        if has_type(schema, "object") {
            let alternative = schema["oneOf"].get(0).into_iter().flat_map(required);
            let fields = required(schema).chain(alternative);
            let fields = fields.map(|name| (name.to_owned(), self.stand_in(&schema["properties"][name])));
            return Json::Object(fields.collect());
        }
        if has_type(schema, "array") {
            let item = self.stand_in(&schema["items"]);
            return (0..schema["minItems"].as_u64().unwrap_or(0)).map(|_| item.clone()).collect();
        }
        match schema["format"].as_str().unwrap_or_default() {
            _ if has_type(schema, "integer") => schema["minimum"].clone(),
            "latency" => json!("1s"),
            "size" => json!("1GiB"),
            "rate" => json!("1bps"),
            "cidr" => json!("0.0.0.0/0"),
            "ip-address" => json!("0.0.0.0"),
            "mac" => json!("02:00:00:00:00:00"),
            "port-ref" => json!("0/0"),
            _ => json!(""),
        }
    }
}
