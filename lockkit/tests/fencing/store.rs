//! Databases, driven through the programs that come with them.

use std::{
    fmt,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use lockkit_testbed::{Postgres, StartedOnce, find_program, until};
use tempfile::TempDir;

use crate::recipe::Recipe;

/// A database with the tables of the recipe.
pub(crate) struct Store {
    database: Database,
    recipe: Recipe,
}

enum Database {
    /// A server, and a schema of its own.
    Postgres(Arc<Postgres>, String),
    /// The folder of the file.
    Sqlite(TempDir),
}

/// What the statements of a script returned.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<String>,
    /// How many rows the last statement changed.
    pub(crate) changed: u32,
}

/// The name of the database.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.database {
            Database::Postgres(..) => "PostgreSQL",
            Database::Sqlite(_) => "SQLite",
        })
    }
}

impl Store {
    /// Both databases.
    pub(crate) fn both(recipe: &Recipe) -> [Self; 2] {
        [Self::postgres(recipe), Self::sqlite(recipe)]
    }

    pub(crate) fn postgres(recipe: &Recipe) -> Self {
        static SERVER: LazyLock<StartedOnce<Postgres>> = LazyLock::new(StartedOnce::default);
        static SCHEMAS: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_start(Postgres::start).expect("PostgreSQL starts");
        let schema = format!("s{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        let store = Self { database: Database::Postgres(server, schema.clone()), recipe: recipe.clone() };
        store.run(&format!("CREATE SCHEMA {schema};\n"));
        store.with_tables()
    }

    pub(crate) fn sqlite(recipe: &Recipe) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { database: Database::Sqlite(folder), recipe: recipe.clone() }.with_tables()
    }

    fn with_tables(self) -> Self {
        self.run(&(self.call("table", &[]) + &self.call("fences", &[])));
        self
    }

    /// The script that runs a statement of the recipe with these parameters; a statement may use the first ones only.
    pub(crate) fn call(&self, name: &str, parameters: &[&str]) -> String {
        let statement = self.recipe.statement(name, &self.to_string());
        let used = (1..=parameters.len()).filter(|number| statement.contains(&format!("${number}"))).count();
        let parameters = &parameters[..used];
        match &self.database {
            Database::Postgres(..) if used > 0 => {
                let values = parameters.join(", ");
                format!("DEALLOCATE ALL;\nPREPARE call AS {statement}\nEXECUTE call({values});\n")
            }
            Database::Postgres(..) => format!("{statement}\n"),
            Database::Sqlite(_) => {
                let set = |(number, value): (usize, &&str)| {
                    format!(".parameter set ${number} \"{value}\"\n", number = number + 1)
                };
                parameters.iter().enumerate().map(set).collect::<String>() + statement + "\n"
            }
        }
    }

    /// The statement that begins a transaction which will write.
    pub(crate) fn begin(&self) -> String {
        match self.database {
            Database::Postgres(..) => "BEGIN;\n".to_owned(),
            Database::Sqlite(_) => "BEGIN IMMEDIATE;\n".to_owned(),
        }
    }

    /// Runs a script to its end.
    pub(crate) fn run(&self, script: &str) -> Reply {
        self.start(script).reply().expect("the script runs")
    }

    /// Starts a script.
    pub(crate) fn start(&self, script: &str) -> Session {
        let mut session = self.session();
        session.send(script);
        session
    }

    /// Starts the program of the database, which waits for statements.
    pub(crate) fn session(&self) -> Session {
        let mut command = match &self.database {
            Database::Postgres(server, schema) => {
                let mut psql = server.psql();
                psql.args(["-q", "-v", "VERBOSITY=sqlstate"]);
                psql.env("PGOPTIONS", format!("-c search_path={schema} -c statement_timeout=60s"))
                    .env("PGAPPNAME", schema);
                psql
            }
            Database::Sqlite(folder) => {
                let mut sqlite =
                    Command::new(find_program("sqlite3", "sqlite3").expect("SQLite is installed"));
                // Settings of the user do not count.
                sqlite.env("HOME", folder.path());
                sqlite.args(["-batch", "-bail", "-cmd", ".timeout 60000"]).arg(folder.path().join("file"));
                sqlite
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program starts");
        let output = BufReader::new(process.stdout.take().expect("it has an output"));
        let count = match self.database {
            Database::Postgres(..) => "\\echo :ROW_COUNT\n",
            Database::Sqlite(_) => "SELECT changes();\n",
        };
        Session { process, output, count }
    }

    /// Waits until so many sessions wait for a lock of PostgreSQL.
    pub(crate) fn wait_until_blocked(&self, sessions: usize) {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                       WHERE application_name = current_schema AND wait_event_type = 'Lock';\n";
        until("the sessions wait", || self.run(waiting).rows == [sessions.to_string()]);
    }
}

/// A running program of a database. A session of PostgreSQL that ends without a commit rolls back.
#[derive(Debug)]
pub(crate) struct Session {
    process: Child,
    output: BufReader<ChildStdout>,
    /// What prints the number of rows that were changed last.
    count: &'static str,
}

impl Session {
    /// Sends statements, and does not wait for them.
    pub(crate) fn send(&mut self, script: &str) {
        let input = self.process.stdin.as_mut().expect("it has an input");
        input.write_all(script.as_bytes()).expect("it reads");
    }

    /// Runs statements, and returns the rows that they print.
    pub(crate) fn ask(&mut self, script: &str) -> Vec<String> {
        self.send(&format!("{script}SELECT 'end';\n"));
        let lines = self.output.by_ref().lines().map(|line| line.expect("it prints text"));
        let (mut rows, mut has_ended) = (Vec::new(), false);
        for line in lines {
            has_ended = line == "end";
            if has_ended {
                break;
            }
            rows.push(line);
        }
        assert!(has_ended, "an error after {rows:?}");
        rows
    }

    /// Waits until all statements have run. The error is what the program prints about it.
    pub(crate) fn reply(mut self) -> Result<Reply, String> {
        let mut input = self.process.stdin.take().expect("it has an input");
        // A program that has ended with an error reads nothing more; its status says so.
        let _ = input.write_all(self.count.as_bytes());
        drop(input);
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("it prints text");
        let ended = self.process.wait_with_output().expect("it ends");
        if !ended.status.success() {
            return Err(String::from_utf8_lossy(&ended.stderr).into_owned());
        }
        let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
        let changed = rows.pop().and_then(|count| count.parse().ok()).expect("a number of rows");
        Ok(Reply { rows, changed })
    }
}
