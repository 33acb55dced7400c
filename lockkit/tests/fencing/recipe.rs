//! The statements of `docs/fencing.md`.

use std::{collections::BTreeMap, fs, path::Path};

/// SQL by title, such as `write (PostgreSQL, SQLite)`.
#[derive(Clone, Debug)]
pub(crate) struct Recipe(BTreeMap<String, String>);

impl Recipe {
    /// Reads the blocks of SQL. The first line of each is its title.
    pub(crate) fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("fencing.md");
        let text = fs::read_to_string(&path).expect("the document is there");
        let blocks = text.split("\n```sql\n-- ").skip(1).map(|rest| {
            let (block, _) = rest.split_once("\n```\n").expect("a block ends");
            let (title, statement) = block.split_once('\n').expect("a title is a line");
            (title.to_owned(), statement.to_owned())
        });
        let blocks: BTreeMap<_, _> = blocks.collect();
        assert_eq!(blocks.len(), text.matches("```sql").count(), "each block has a title of its own");
        Self(blocks)
    }

    pub(crate) fn titles(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Returns the statement for this database.
    pub(crate) fn statement(&self, name: &str, database: &str) -> &str {
        let is_it = |title: &str| {
            title.split_once(" (").is_some_and(|(first, rest)| first == name && rest.contains(database))
        };
        let (_, statement) = self.0.iter().find(|(title, _)| is_it(title)).expect(name);
        statement
    }

    /// The same with another text in place of `part` in each statement of this name.
    pub(crate) fn with(mut self, name: &str, part: &str, replacement: &str) -> Self {
        let statements = self.0.iter_mut().filter(|(title, _)| title.starts_with(&format!("{name} (")));
        let found = statements.filter(|(_, statement)| statement.contains(part)).map(|(_, statement)| {
            *statement = statement.replace(part, replacement);
        });
        assert!(found.count() > 0, "no `{part}` in `{name}`");
        self
    }
}
