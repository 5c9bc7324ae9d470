//! What the files of `src/` need of each other, read from their tokens: comments, texts and test modules say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A module's way from the crate's root.
pub type Module = Vec<String>;

/// A file that names something of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    pub file: String,
    pub used: String,
    /// Only passed on: a face that shows what another file has needs nothing of it.
    pub shown: bool,
}

/// A path below src/ → its text.
pub type Files = BTreeMap<String, String>;

#[derive(Default)]
struct Source {
    /// Modules, those inside files too, and the file that each is in.
    file_of: BTreeMap<Module, String>,
    /// What a module's `use` gives a name to.
    aliases: BTreeMap<(Module, String), Vec<String>>,
    mentions: Vec<Mention>,
}

/// A path that is written in a module.
struct Mention {
    module: Module,
    path: Vec<String>,
    shown: bool,
}

type Tokens = Peekable<proc_macro2::token_stream::IntoIter>;

/// Every .rs file below a folder.
pub fn files(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    files
}

/// Which file needs which, but for programs (`main.rs`, `bin/`) and what is compiled for tests alone.
pub fn uses(files: &Files) -> BTreeSet<Use> {
    let mut source = Source::default();
    for name in files.keys().filter(|name| !is_program(name)) {
        source.file_of.insert(module_of(name), name.clone());
    }
    for (name, text) in files.iter().filter(|(name, _)| !is_program(name) && !name.ends_with("tests.rs")) {
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        source.read(tokens, &module_of(name));
    }
    source.uses()
}

fn is_program(name: &str) -> bool {
    name == "main.rs" || name.starts_with("bin/")
}

fn module_of(name: &str) -> Module {
    let steps = name.trim_end_matches(".rs").split('/');
    steps.filter(|step| !matches!(*step, "mod" | "lib")).map(str::to_owned).collect()
}

impl Source {
    fn read(&mut self, tokens: TokenStream, module: &Module) {
        let mut tokens = tokens.into_iter().peekable();
        let (mut shown, mut test) = (false, false);
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(group)) = tokens.peek() {
                        test |= group.stream().to_string().replace(' ', "") == "cfg(test)";
                    }
                    continue;
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "pub" => {
                        shown = true;
                        continue;
                    }
                    "mod" => self.module(&mut tokens, module, test),
                    "use" => {
                        let tree: TokenStream =
                            tokens.by_ref().take_while(|token| !is_punct(Some(token), ';')).collect();
                        if !test {
                            self.import(tree, &[], module, shown);
                        }
                    }
                    first => self.path(first.to_owned(), &mut tokens, module),
                },
                TokenTree::Group(group) => {
                    self.read(group.stream(), module);
                    // Of an attribute, or of `pub(super)`: what it belongs to is still to come.
                    if group.delimiter() != Delimiter::Brace {
                        continue;
                    }
                }
                _ => {}
            }
            (shown, test) = (false, false);
        }
    }

    /// Behind `mod`.
    fn module(&mut self, tokens: &mut Tokens, module: &Module, test: bool) {
        let Some(TokenTree::Ident(name)) = tokens.next() else { return };
        if let Some(TokenTree::Group(body)) = tokens.next_if(|token| matches!(token, TokenTree::Group(_)))
            && !test
        {
            let inner = [module.as_slice(), &[name.to_string()]].concat();
            self.file_of.insert(inner.clone(), self.file_of[module].clone());
            self.read(body.stream(), &inner);
        }
    }

    /// A tree of `use`, behind `prefix`.
    fn import(&mut self, tree: TokenStream, prefix: &[String], module: &Module, shown: bool) {
        let tokens: Vec<TokenTree> = tree.into_iter().collect();
        for branch in tokens.split(|token| is_punct(Some(token), ',')).filter(|branch| !branch.is_empty()) {
            let (mut path, mut name, mut renamed) = (prefix.to_vec(), None, false);
            for token in branch {
                match token {
                    TokenTree::Ident(ident) if ident == "as" => renamed = true,
                    TokenTree::Ident(ident) if renamed => name = Some(ident.to_string()),
                    TokenTree::Ident(ident) if ident == "self" && !path.is_empty() => {}
                    TokenTree::Ident(ident) => path.push(ident.to_string()),
                    TokenTree::Group(group) => self.import(group.stream(), &path, module, shown),
                    _ => {}
                }
            }
            if !matches!(branch.last(), Some(TokenTree::Group(_))) {
                let name = name.unwrap_or_else(|| path.last().expect("a branch names something").clone());
                self.aliases.insert((module.clone(), name), path.clone());
                self.mentions.push(Mention { module: module.clone(), path, shown });
            }
        }
    }

    /// A path that begins with `first`.
    fn path(&mut self, first: String, tokens: &mut Tokens, module: &Module) {
        let mut path = vec![first];
        while tokens.next_if(|token| is_punct(Some(token), ':')).is_some() {
            if tokens.next_if(|token| is_punct(Some(token), ':')).is_none() {
                break;
            }
            let Some(TokenTree::Ident(step)) = tokens.next_if(|token| matches!(token, TokenTree::Ident(_))) else {
                break;
            };
            path.push(step.to_string());
        }
        if path.len() > 1 {
            self.mentions.push(Mention { module: module.clone(), path, shown: false });
        }
    }

    fn uses(&self) -> BTreeSet<Use> {
        let mut uses = BTreeSet::new();
        for Mention { module, path, shown } in &self.mentions {
            let file = &self.file_of[module];
            if let Some(used) = self.resolve(module, path, 0).filter(|used| *used != file) {
                uses.insert(Use { file: file.clone(), used: used.clone(), shown: *shown });
            }
        }
        uses
    }

    /// The file that has what a path in a module names; None of other crates.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<&String> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module.split_last()?.1.to_vec(),
            _ => {
                rest = path;
                module.clone()
            }
        };
        let anchored = rest.len() < path.len();
        loop {
            let Some((step, next)) = rest.split_first() else { return self.file_of.get(&at) };
            let inner = [at.as_slice(), std::slice::from_ref(step)].concat();
            if step == "super" {
                at.pop();
            } else if self.file_of.contains_key(&inner) {
                at = inner;
            } else if let Some(target) = self.aliases.get(&(at.clone(), step.clone())).filter(|_| depth < 20)
                && target.as_slice() != path
            {
                return self.resolve(&at, &[target, next].concat(), depth + 1);
            } else if anchored || at != *module {
                return self.file_of.get(&at);
            } else {
                return None;
            }
            rest = next;
        }
    }
}

fn is_punct(token: Option<&TokenTree>, expected: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

/// Files that these need, directly or through others.
pub fn reached(uses: &BTreeSet<Use>, from: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    follow(&needs(uses), from.into_iter().collect())
}

fn needs(uses: &BTreeSet<Use>) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut needs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Use { file, used, .. } in uses.iter().filter(|needed| !needed.shown) {
        needs.entry(file).or_default().insert(used);
    }
    needs
}

fn follow(needs: &BTreeMap<&str, BTreeSet<&str>>, mut open: Vec<String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop() {
        for &other in needs.get(next.as_str()).into_iter().flatten() {
            if seen.insert(other.to_owned()) {
                open.push(other.to_owned());
            }
        }
    }
    seen
}

/// Groups of files that need each other, directly or through others.
pub fn circles(uses: &BTreeSet<Use>) -> Vec<Vec<String>> {
    let needs = needs(uses);
    let reached: BTreeMap<&str, BTreeSet<String>> =
        needs.keys().map(|&file| (file, follow(&needs, vec![file.to_owned()]))).collect();
    let mut groups = BTreeSet::new();
    for (&file, others) in reached.iter().filter(|(file, others)| others.contains(**file)) {
        let together =
            others.iter().filter(|other| reached.get(other.as_str()).is_some_and(|back| back.contains(file)));
        groups.insert(together.cloned().collect::<Vec<_>>());
    }
    groups.into_iter().collect()
}

/// Lines, from 1, of a word of the code outside tests.
pub fn lines_with(text: &str, wanted: &str) -> Vec<usize> {
    fn walk(tokens: TokenStream, wanted: &str, found: &mut Vec<usize>) {
        let mut test = false;
        for token in tokens {
            match &token {
                TokenTree::Group(group) if !(test && group.delimiter() == Delimiter::Brace) => {
                    test |= is_cfg_test(group);
                    walk(group.stream(), wanted, found);
                }
                TokenTree::Group(_) => test = false,
                TokenTree::Ident(ident) if ident == wanted => found.push(ident.span().start().line),
                token if is_punct(Some(token), ';') => test = false,
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(text.parse().expect("it compiles"), wanted, &mut found);
    found
}

fn is_cfg_test(group: &Group) -> bool {
    group.delimiter() == Delimiter::Bracket && group.stream().to_string().replace(' ', "") == "cfg(test)"
}
