//! A line of a scenario, word by word.

use upf::usage::Counts;

use super::frame::number;

/// The words of a line that are still to be read.
pub struct Words<'t>(pub Vec<&'t str>);

impl Words<'_> {
    pub fn parse<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        if self.0.is_empty() {
            return Err("the line ends too early".into());
        }
        let word = self.0.remove(0);
        word.parse().map_err(|_| format!("what is {word}?"))
    }

    pub fn number(&mut self) -> Result<u64, String> {
        number(&self.parse::<String>()?)
    }

    /// `UPLINK-OCTETS UPLINK-PACKETS DOWNLINK-OCTETS DOWNLINK-PACKETS`.
    pub fn counts(&mut self) -> Result<Counts, String> {
        Ok(Counts {
            uplink_octets: self.number()?,
            uplink_packets: self.number()?,
            downlink_octets: self.number()?,
            downlink_packets: self.number()?,
        })
    }

    /// The value behind `key`, if the line has it.
    pub fn after(&mut self, key: &str) -> Result<Option<String>, String> {
        let Some(at) = self.0.iter().position(|word| *word == key) else { return Ok(None) };
        if at + 1 >= self.0.len() {
            return Err(format!("{key} lacks its value"));
        }
        self.0.remove(at);
        Ok(Some(self.0.remove(at).to_owned()))
    }

    pub fn all_after<T>(&mut self, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        let mut all = vec![];
        while let Some(value) = self.after(key)? {
            all.push(read(&value)?);
        }
        Ok(all)
    }

    pub fn flag(&mut self, word: &str) -> bool {
        let found = self.0.iter().position(|other| *other == word);
        found.map(|at| self.0.remove(at)).is_some()
    }
}
