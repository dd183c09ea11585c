//! The stages of the line: their folders, verbs and order.

use std::fmt;

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Where servers are found.
    Discover,
    /// Their tools.
    Harvest,
    /// Instructions and calls.
    Generate,
    /// The filters before rollout.
    FilterSamples,
    /// Calls run live.
    Rollout,
    /// The filter after rollout.
    FilterTrajectories,
    /// Published datasets.
    Export,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 7] = [
        Self::Discover,
        Self::Harvest,
        Self::Generate,
        Self::FilterSamples,
        Self::Rollout,
        Self::FilterTrajectories,
        Self::Export,
    ];

    /// Its folder in a run.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Discover => "1-discover",
            Self::Harvest => "2-harvest",
            Self::Generate => "3-generate",
            Self::FilterSamples => "4-filter",
            Self::Rollout => "5-rollout",
            Self::FilterTrajectories => "6-filter",
            Self::Export => "7-export",
        }
    }

    /// Its verb: the folder's word.
    pub fn verb(self) -> &'static str {
        self.folder().split_once('-').map_or("", |(_, verb)| verb)
    }

    /// A stage by its folder, or by its verb where only one stage has it.
    ///
    /// # Errors
    /// A sentence that names what is known.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(stage) = Self::ALL.into_iter().find(|s| s.folder() == text) {
            return Ok(stage);
        }
        let mut named = Self::ALL.into_iter().filter(|s| s.verb() == text);
        match (named.next(), named.next()) {
            (Some(stage), None) => Ok(stage),
            (Some(_), Some(_)) => Err(format!("`{text}` runs twice: say `4-filter` or `6-filter`")),
            _ => Err(format!("there is no stage `{text}`; stages are {}", Self::ALL.map(Self::folder).join(", "))),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.folder())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_named_by_verb_or_folder() {
        assert_eq!(Stage::parse("harvest"), Ok(Stage::Harvest));
        assert_eq!(Stage::parse("6-filter"), Ok(Stage::FilterTrajectories));
        assert!(Stage::parse("filter").unwrap_err().contains("4-filter"));
        assert!(Stage::parse("bake").unwrap_err().contains("1-discover"));
    }
}
