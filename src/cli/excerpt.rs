//! What an error shows of a spec: a few lines around the guilty text, each cut to what a screen holds, and no name without an end.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

/// Characters of a line that are shown.
const WIDTH: usize = 120;
/// Characters that are shown before the guilty text of a line that is longer.
const LEAD: usize = 40;
/// Lines of guilty text that are shown.
const LINES: usize = 5;
/// Characters of a message that are shown: of a longer one the beginning, and the end, where remedies stand.
const MESSAGE: usize = 1000;
/// Stands for what is cut.
const CUT: &str = "…";

/// A spec's text, under the name that messages show.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: Arc<str>,
}

/// Guilty text, the line before it and the line behind it. Its own text is short, whatever the spec's is, but line and column are
/// those of the spec.
#[derive(Debug)]
pub(super) struct Excerpt {
    name: String,
    text: String,
    /// The guilty bytes of `text`.
    span: Range<usize>,
    /// The line of the spec that `text` begins with, from 0.
    line: usize,
    /// Where the guilty text begins in its line of the spec, in bytes from 0.
    column: usize,
}

impl Source {
    /// What to show of these bytes.
    pub(super) fn excerpt(&self, span: Range<usize>) -> Excerpt {
        let text = &*self.text;
        let start = span.start.min(text.trim_end().len());
        let end = span.end.max(start);
        let line_start = |byte: usize| text[..byte].rfind('\n').map_or(0, |newline| newline + 1);
        let guilty_line = line_start(start);
        let first = line_start(guilty_line.saturating_sub(1));
        let mut excerpt = Excerpt {
            name: self.name.clone(),
            text: String::new(),
            span: 0..0,
            line: text[..first].matches('\n').count(),
            column: start - guilty_line,
        };
        let lines_before = usize::from(first < guilty_line);
        let mut at = first;
        for line in text[first..].split_inclusive('\n').take(lines_before + LINES + 1) {
            let is_behind = at >= end && at > guilty_line;
            excerpt.push(line, at, start..end, guilty_line);
            at += line.len();
            if is_behind {
                break;
            }
        }
        excerpt
    }
}

impl Excerpt {
    /// The guilty bytes, for miette.
    pub(super) fn span(&self) -> SourceSpan {
        self.span.clone().into()
    }

    /// Adds the spec's line that begins at byte `at`, and the guilty bytes in it.
    fn push(&mut self, line: &str, at: usize, span: Range<usize>, guilty_line: usize) {
        let content = line.trim_end_matches(['\n', '\r']);
        let guilty = span.start.saturating_sub(at).min(content.len())..span.end.saturating_sub(at).min(content.len());
        let shown = window(content, if at == guilty_line { guilty.start } else { 0 });
        if shown.start > 0 {
            self.text.push_str(CUT);
        }
        let begin = self.text.len();
        let place = |byte: usize| begin + byte.clamp(shown.start, shown.end) - shown.start;
        if at == guilty_line {
            self.span = place(guilty.start)..place(guilty.end);
        } else if at > guilty_line && guilty.end > 0 {
            self.span.end = place(guilty.end);
        }
        self.text.push_str(&content[shown.clone()]);
        if shown.end < content.len() {
            self.text.push_str(CUT);
        }
        self.text.push('\n');
    }
}

/// A message that can be read whatever names the spec has.
pub(super) fn readable(message: &str) -> Cow<'_, str> {
    let place = |character: usize| message.char_indices().nth(character).map(|(byte, _)| byte);
    if place(MESSAGE).is_none() {
        return message.into();
    }
    let from_end = message.char_indices().rev().nth(MESSAGE / 2 - 1).map_or(0, |(byte, _)| byte);
    let until = place(MESSAGE / 2).unwrap_or(message.len());
    [&message[..until], CUT, &message[from_end..]].concat().into()
}

/// The bytes of a line that are shown: all of them where they are few, else those around `focus`.
fn window(line: &str, focus: usize) -> Range<usize> {
    if line.chars().nth(WIDTH).is_none() {
        return 0..line.len();
    }
    let start = line[..focus].char_indices().rev().take(LEAD).last().map_or(focus, |(byte, _)| byte);
    // Near the line's beginning nothing is gained by cutting it off.
    let start = if line[..start].chars().nth(LEAD).is_none() { 0 } else { start };
    let end = line[start..].char_indices().nth(WIDTH).map_or(line.len(), |(byte, _)| start + byte);
    start..end
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let own = self.text.read_span(span, lines_before, lines_after)?;
        // Without lines around it, miette asks where the span is.
        let column = if lines_before == 0 { self.column } else { own.column() };
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            own.data(),
            *own.span(),
            self.line + own.line(),
            column,
            own.line_count(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::{Excerpt, LEAD, LINES, MESSAGE, Source, WIDTH, readable};

    fn excerpt(text: &str, span: std::ops::Range<usize>) -> Excerpt {
        Source { name: "spec".into(), text: text.into() }.excerpt(span)
    }

    /// Protects: of short lines nothing is lost, and the guilty bytes stay what they are, at a text's ends too.
    #[test]
    fn short_lines_are_shown_whole() {
        let text = "one\ntwo\nthree\nfour\n";
        for (guilty, shown) in [("one", "one\ntwo\n"), ("three", "two\nthree\nfour\n"), ("four", "three\nfour\n")] {
            let start = text.find(guilty).expect("it is there");
            let excerpt = excerpt(text, start..start + guilty.len());
            assert_eq!((excerpt.text.as_str(), &excerpt.text[excerpt.span.clone()]), (shown, guilty));
            assert_eq!(
                excerpt.line + excerpt.text[..excerpt.span.start].matches('\n').count(),
                text[..start].matches('\n').count()
            );
        }
        for at in [text.len(), text.len() + 9] {
            assert_eq!(excerpt(text, at..at).text, "three\nfour\n");
        }
        assert_eq!(excerpt("", 0..0).text, "");
    }

    /// Protects: of a long line a part is shown that begins a little before the guilty text, whose place in the spec is told.
    #[test]
    fn long_lines_are_cut() {
        let line = format!("{}GUILTY{}", "é".repeat(5_000), "ü".repeat(1_000_000));
        let text = format!("first\n{line}\n{line}\n");
        let start = text.find("GUILTY").expect("it is there");
        let found = excerpt(&text, start..start + 6);
        assert_eq!(&found.text[found.span.clone()], "GUILTY");
        assert_eq!((found.line, found.column), (0, 10_000));
        let lines: Vec<_> = found.text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH + 2), "{lines:?}");
        assert_eq!(lines[1].find("GUILTY"), Some("…".len() + LEAD * "é".len()));
        assert!(lines[2].starts_with('é') && lines[2].ends_with('…'), "{}", lines[2]);
    }

    /// Protects: a name of a megabyte does not hide what is wrong with it, nor what to do.
    #[test]
    fn long_messages_are_cut_in_the_middle() {
        assert_eq!(readable("there is no `é`"), "there is no `é`");
        let long = format!("there is no `{}`: declare it", "é".repeat(1_000_000));
        let shown = readable(&long);
        assert_eq!(shown.chars().count(), MESSAGE + 1);
        assert!(shown.starts_with("there is no `é") && shown.ends_with("é`: declare it"), "{shown}");
        assert_eq!(readable(&"ü".repeat(MESSAGE)).chars().count(), MESSAGE);
    }

    /// Protects: guilty text of a megabyte, on one line or on many, is shown from its beginning.
    #[test]
    fn long_guilty_text_is_cut() {
        let one_line = "x".repeat(1_000_000);
        let found = excerpt(&one_line, 0..one_line.len());
        assert_eq!(found.text.lines().next().map(|line| line.chars().count()), Some(WIDTH + 1));
        assert_eq!(found.span, 0..WIDTH);
        let many_lines = "before\n".to_owned() + &"y\n".repeat(500_000);
        let found = excerpt(&many_lines, 7..many_lines.len());
        assert_eq!(found.text.lines().count(), 1 + LINES + 1);
        assert!(found.text[found.span.clone()].starts_with("y\ny") && found.span.end <= found.text.len());
    }
}
