//! Cuts a `.cu` text into tokens. Comments are dropped; of preprocessor lines only macro definitions are kept, apart.

use super::{SignatureError, SignatureFault};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, keyword or number.
    Word,
    /// A string or character literal, quotes included.
    Text,
    /// Any other single character.
    Other,
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind,
    pub(super) text: &'t str,
    /// Its first byte.
    pub(super) offset: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// A text and its tokens.
pub(super) struct Scan<'t> {
    pub(super) text: &'t str,
    pub(super) tokens: Vec<Token<'t>>,
    /// Each macro's name and the tokens behind it.
    macros: Vec<(&'t str, Vec<Token<'t>>)>,
    /// For each opening bracket among the tokens, the token behind its closing one.
    ends: Vec<Option<usize>>,
}

impl<'t> Scan<'t> {
    pub(super) fn new(text: &'t str) -> Result<Self, SignatureError> {
        let mut scan = Self { text, tokens: Vec::new(), macros: Vec::new(), ends: Vec::new() };
        let mut at = 0;
        let mut line_start = true;
        while let Some(next) = text[at..].chars().next() {
            let start = at;
            at = match next {
                '\n' => at + 1,
                _ if next.is_whitespace() => at + next.len_utf8(),
                '/' if text[at..].starts_with("//") => line_end(text, at),
                '/' if text[at..].starts_with("/*") => scan.comment_end(at)?,
                '#' if line_start => scan.directive(at)?,
                _ => scan.token(at, next)?,
            };
            line_start = next == '\n' || line_start && text[start..at].trim().is_empty();
        }
        scan.match_brackets();
        Ok(scan)
    }

    /// The line and column, from 1, of a byte.
    pub(super) fn position(&self, offset: usize) -> (u32, u32) {
        let before = &self.text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    pub(super) fn error(&self, offset: usize, fault: SignatureFault) -> SignatureError {
        let (line, column) = self.position(offset);
        SignatureError { line, column, offset, fault }
    }

    /// The token behind the bracket that closes the one at `open`.
    pub(super) fn matching(&self, open: usize) -> Result<usize, SignatureError> {
        self.ends[open]
            .ok_or_else(|| self.error(self.tokens[open].offset, SignatureFault::Unclosed { what: "bracket" }))
    }

    /// Macros, then functions, each with its name and body, in the order of the text.
    pub(super) fn definitions(&self) -> impl Iterator<Item = (&'t str, &[Token<'t>])> {
        let macros = self.macros.iter().map(|(name, body)| (*name, body.as_slice()));
        let functions = (0..self.tokens.len()).filter_map(|at| self.function(at));
        macros.chain(functions)
    }

    /// The function whose name is the token at `at`, with its body.
    fn function(&self, at: usize) -> Option<(&'t str, &[Token<'t>])> {
        let name = self.tokens[at];
        let is_statement = matches!(name.text, "if" | "for" | "while" | "switch");
        self.tokens.get(at + 1).filter(|open| open.is("(") && name.kind == Kind::Word && !is_statement)?;
        let body = self.ends[at + 1]?;
        self.tokens.get(body).filter(|brace| brace.is("{"))?;
        Some((name.text, &self.tokens[body..self.ends[body]?]))
    }

    fn token(&mut self, at: usize, next: char) -> Result<usize, SignatureError> {
        let (kind, end) = if next == '"' || next == '\'' && !self.is_digit_separator(at) {
            (Kind::Text, self.literal_end(at, next)?)
        } else if next.is_alphanumeric() || next == '_' {
            let rest = &self.text[at..];
            (Kind::Word, at + rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()))
        } else {
            (Kind::Other, at + next.len_utf8())
        };
        self.tokens.push(Token { kind, text: &self.text[at..end], offset: at });
        Ok(end)
    }

    /// `1'000` has no character literal in it.
    fn is_digit_separator(&self, at: usize) -> bool {
        self.text[..at].ends_with(|c: char| c.is_ascii_hexdigit())
            && self.text[at + 1..].starts_with(|c: char| c.is_ascii_hexdigit())
            && self.tokens.last().is_some_and(|last| {
                last.offset + last.text.len() == at && last.text.starts_with(|c: char| c.is_ascii_digit())
            })
    }

    fn literal_end(&self, at: usize, quote: char) -> Result<usize, SignatureError> {
        let mut escaped = false;
        for (offset, c) in self.text[at + 1..].char_indices() {
            match c {
                '\n' if !escaped => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == quote => return Ok(at + 1 + offset + 1),
                _ => {}
            }
        }
        Err(self.error(at, SignatureFault::Unclosed { what: "literal" }))
    }

    fn comment_end(&self, at: usize) -> Result<usize, SignatureError> {
        let end = self.text[at + 2..].find("*/");
        end.map(|end| at + 2 + end + 2).ok_or_else(|| self.error(at, SignatureFault::Unclosed { what: "comment" }))
    }

    /// Passes over a preprocessor line, continued lines included, and keeps what it defines.
    fn directive(&mut self, at: usize) -> Result<usize, SignatureError> {
        let mut end = line_end(self.text, at);
        while self.text[at..end].trim_end_matches('\r').ends_with('\\') && end < self.text.len() {
            end = line_end(self.text, end + 1);
        }
        let Some(definition) = self.text[at + 1..end].trim_start().strip_prefix("define") else { return Ok(end) };
        // The body is scanned on its own: its brackets need not match.
        let outer = std::mem::take(&mut self.tokens);
        let mut from = end - definition.len();
        while let Some(next) = self.text[from..end].chars().next() {
            from = match next {
                _ if next.is_whitespace() || next == '\\' => from + next.len_utf8(),
                '/' if self.text[from..end].starts_with("//") => end,
                '/' if self.text[from..end].starts_with("/*") => self.comment_end(from)?.min(end),
                // A stray quote in a macro is the preprocessor's business.
                _ => self.token(from, next).unwrap_or(end).min(end),
            };
        }
        let body = std::mem::replace(&mut self.tokens, outer);
        if let Some((name, body)) = body.split_first() {
            self.macros.push((name.text, body.to_vec()));
        }
        Ok(end)
    }

    fn match_brackets(&mut self) {
        self.ends = vec![None; self.tokens.len()];
        let mut open = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            match token.text {
                "(" | "{" | "[" => open.push(at),
                ")" | "}" | "]" => {
                    if let Some(start) = open.pop() {
                        self.ends[start] = Some(at + 1);
                    }
                }
                _ => {}
            }
        }
    }
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end)
}
