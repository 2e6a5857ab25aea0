//! Daily closing prices: reading them from a file, and refusing what no strategy should be trained on.
//!
//! Everything that can be wrong with a price history is found here, before any memory is declared or step launched. Nothing
//! is repaired: a filled gap or a dropped row would be a made-up price.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use stepgraph::file;

/// Days without any price that a history may have between two rows. The longest closure since 1990, in September 2001, left 7
/// days between two closes; more than this is missing data.
pub(crate) const LONGEST_CLOSURE: i64 = 10;

/// A rectangular history of closing prices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prices {
    /// The date of each row, `YYYY-MM-DD`, ascending.
    pub(crate) dates: Vec<String>,
    /// The name of each column.
    pub(crate) stocks: Vec<String>,
    /// Prices, one row per date and one column per stock, row-major; all finite and above 0.
    pub(crate) closes: Vec<f32>,
}

/// What is wrong with a price file. Lines count from 1 and include the header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MarketError {
    /// The file cannot be opened.
    #[error("cannot open the price file {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The bytes cannot be read to their end.
    #[error("the price file breaks off or is damaged after line {line}: {reason}; fetch it again")]
    Damaged {
        /// The last line that could be read.
        line: u64,
        /// What the reader said.
        reason: String,
    },
    /// The first row names the columns.
    #[error("line 1: expected a header `Date,NAME,NAME,…` with at least one stock, found `{found}`")]
    Header {
        /// The first row.
        found: String,
    },
    /// No two columns have one name.
    #[error("line 1, column {column}: the stock `{name}` is named twice")]
    DuplicateStock {
        /// The second column of that name, from 1.
        column: usize,
        /// The name.
        name: String,
    },
    /// Every row has a cell for every column.
    #[error("line {line}: {found} columns, the header has {expected}")]
    Columns {
        /// The line.
        line: u64,
        /// Cells of the header.
        expected: usize,
        /// Cells of the row.
        found: usize,
    },
    /// Dates are written as `YYYY-MM-DD`.
    #[error("line {line}, column Date: `{found}` is not a date of the form YYYY-MM-DD")]
    Date {
        /// The line.
        line: u64,
        /// The cell.
        found: String,
    },
    /// Dates ascend.
    #[error("line {line}, column Date: {found} does not come after {previous}: sort the file by date, one row a day")]
    Order {
        /// The line.
        line: u64,
        /// This row's date.
        found: String,
        /// The date of the row before.
        previous: String,
    },
    /// No long stretch of days is missing.
    #[error(
        "line {line}, column Date: {days} days lie between {previous} and {found}, more than any closure of the exchange: \
         rows are missing"
    )]
    Gap {
        /// The line.
        line: u64,
        /// This row's date.
        found: String,
        /// The date of the row before.
        previous: String,
        /// How many days lie between both.
        days: i64,
    },
    /// Every cell holds a price.
    #[error("line {line}, column {stock}: the price is missing; drop the stock, or begin where all have prices")]
    Missing {
        /// The line.
        line: u64,
        /// The column's name.
        stock: String,
    },
    /// A price is a finite number above 0.
    #[error("line {line}, column {stock}: `{found}` is not a price: it must be a finite number above 0")]
    Price {
        /// The line.
        line: u64,
        /// The column's name.
        stock: String,
        /// The cell.
        found: String,
    },
    /// There is something to trade.
    #[error("the price file has a header but no rows")]
    Empty,
}

impl Prices {
    /// How many rows there are.
    pub(crate) fn days(&self) -> usize {
        self.dates.len()
    }

    /// How many columns there are.
    pub(crate) fn stock_count(&self) -> usize {
        self.stocks.len()
    }

    /// The price of a stock on a day.
    pub(crate) fn close(&self, day: usize, stock: usize) -> f32 {
        self.closes[day * self.stock_count() + stock]
    }

    /// Reads a CSV file, compressed where its name ends in `.gz`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and column.
    pub(crate) fn load(path: &Path) -> Result<Self, MarketError> {
        let bytes = file::read(path).map_err(|source| MarketError::Open { path: path.to_owned(), source })?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            Self::unpack(&bytes)
        } else {
            Self::read(&bytes)
        }
    }

    /// Reads compressed CSV text, in one piece or in several behind each other.
    ///
    /// # Errors
    /// As [`Prices::read`], and bytes that are no complete gzip file.
    pub(crate) fn unpack(gzip: &[u8]) -> Result<Self, MarketError> {
        let mut text = Vec::new();
        match MultiGzDecoder::new(gzip).read_to_end(&mut text) {
            Ok(_) => Self::read(&text),
            Err(error) => Err(MarketError::Damaged { line: line_ends(&text), reason: error.to_string() }),
        }
    }

    /// Reads CSV text: a header `Date,NAME,…`, then one row per trading day.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and column.
    pub(crate) fn read(text: &[u8]) -> Result<Self, MarketError> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        let mut records = reader.records();
        let (mut line, mut counted) = (1, 0);
        let mut next = || match records.next() {
            None => Ok(None),
            Some(Ok(record)) => {
                // The reader's own count lags where lines end in two bytes, of which it has only seen the first.
                let from = record.position().map_or(counted, |position| position.byte() as usize);
                let start = from + text[from..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                line += line_ends(&text[counted..start]);
                counted = start;
                Ok(Some((line, record)))
            }
            Some(Err(error)) => Err(MarketError::Damaged { line, reason: error.to_string() }),
        };
        let header = next()?.ok_or_else(|| MarketError::Header { found: String::new() })?.1;
        let mut prices = Self { dates: Vec::new(), stocks: stocks_of(&header)?, closes: Vec::new() };
        while let Some((line, record)) = next()? {
            prices.push(line, &record)?;
        }
        if prices.dates.is_empty() {
            return Err(MarketError::Empty);
        }
        Ok(prices)
    }

    fn push(&mut self, line: u64, record: &csv::StringRecord) -> Result<(), MarketError> {
        let expected = self.stocks.len() + 1;
        if record.len() != expected {
            return Err(MarketError::Columns { line, expected, found: record.len() });
        }
        let date = record.get(0).unwrap_or_default();
        self.check_date(line, date)?;
        for (stock, cell) in self.stocks.iter().zip(record.iter().skip(1)) {
            self.closes.push(price(line, stock, cell)?);
        }
        self.dates.push(date.to_owned());
        Ok(())
    }

    fn check_date(&self, line: u64, date: &str) -> Result<(), MarketError> {
        let found = || date.to_owned();
        let day = day_number(date).ok_or_else(|| MarketError::Date { line, found: found() })?;
        let Some(previous) = self.dates.last() else { return Ok(()) };
        let days = day - day_number(previous).unwrap_or(day);
        if days <= 0 {
            return Err(MarketError::Order { line, found: found(), previous: previous.clone() });
        }
        if days > LONGEST_CLOSURE {
            return Err(MarketError::Gap { line, found: found(), previous: previous.clone(), days });
        }
        Ok(())
    }
}

fn line_ends(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn stocks_of(header: &csv::StringRecord) -> Result<Vec<String>, MarketError> {
    let stocks: Vec<String> = header.iter().skip(1).map(str::to_owned).collect();
    let named =
        header.get(0) == Some("Date") && !stocks.is_empty() && stocks.iter().all(|name| !name.trim().is_empty());
    if !named {
        return Err(MarketError::Header { found: header.iter().collect::<Vec<_>>().join(",") });
    }
    for (column, name) in stocks.iter().enumerate() {
        if stocks[..column].contains(name) {
            return Err(MarketError::DuplicateStock { column: column + 2, name: name.clone() });
        }
    }
    Ok(stocks)
}

fn price(line: u64, stock: &str, cell: &str) -> Result<f32, MarketError> {
    let cell = cell.trim();
    if cell.is_empty() {
        return Err(MarketError::Missing { line, stock: stock.to_owned() });
    }
    let price: Option<f32> = cell.parse().ok();
    price.filter(|price| price.is_finite() && *price > 0.0).ok_or_else(|| MarketError::Price {
        line,
        stock: stock.to_owned(),
        found: cell.to_owned(),
    })
}

/// Days from 0000-03-01 to a date of the proleptic Gregorian calendar, by H. Hinnant's `days_from_civil`; `None` where the
/// text is no such date.
fn day_number(date: &str) -> Option<i64> {
    let bytes = date.as_bytes();
    let shape = bytes.len() == 10
        && bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| if at == 4 || at == 7 { *byte == b'-' } else { byte.is_ascii_digit() });
    if !shape {
        return None;
    }
    let number = |range: std::ops::Range<usize>| date[range].parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    Some(year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year)
}
