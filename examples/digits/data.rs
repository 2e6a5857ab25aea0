//! The digits: read, checked, shuffled, split.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use stepgraph::host::philox4x32;

use crate::program::{TEST, TRAIN};

const PIXELS: usize = 64;
const CLASSES: i32 = 10;
/// Grey values run from 0 to this.
const WHITE: f32 = 16.0;
/// The split is the same in every run, whatever the seed of the training.
const SHUFFLE_SEED: u32 = 20;

/// Images, scaled to 0–1, one a row, and what they show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Set {
    pub(crate) images: Vec<f32>,
    pub(crate) labels: Vec<i32>,
}

/// The images to train on and those to test on.
///
/// # Errors
/// A file that is no gzip, or does not hold 1,797 rows of 64 grey values and a label.
pub(crate) fn read(gzip: &[u8]) -> Result<(Set, Set)> {
    let mut text = Vec::new();
    MultiGzDecoder::new(gzip).read_to_end(&mut text).context("not a complete gzip file")?;
    let all = parse(&text)?;
    let (train, test) = (TRAIN as usize, TEST as usize);
    let found = all.labels.len();
    ensure!(found == train + test, "{found} rows, expected {}: is this digits.csv.gz?", train + test);
    // The last rows come from other writers than the first, so the order must not decide who tests.
    let order = shuffled(found);
    Ok((all.take(&order[..train]), all.take(&order[train..])))
}

fn parse(text: &[u8]) -> Result<Set> {
    let mut set = Set::default();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
    for (number, record) in reader.records().enumerate() {
        let line = number + 1;
        let record = record.with_context(|| format!("line {line}"))?;
        ensure!(record.len() == PIXELS + 1, "line {line}: {} columns, expected {}", record.len(), PIXELS + 1);
        for (column, field) in record.iter().enumerate() {
            let value: f32 = field.trim().parse().with_context(|| format!("line {line}, column {}", column + 1))?;
            if column < PIXELS {
                ensure!((0.0..=WHITE).contains(&value), "line {line}, column {}: {value} is no grey value", column + 1);
                set.images.push(value / WHITE);
            } else {
                set.labels.push(label(value).with_context(|| format!("line {line}: {value} is no digit"))?);
            }
        }
    }
    Ok(set)
}

fn label(value: f32) -> Result<i32> {
    let label = value as i32;
    if label as f32 != value || !(0..CLASSES).contains(&label) {
        bail!("labels are 0 to 9");
    }
    Ok(label)
}

/// `0 .. count` in random order (Fisher and Yates), the same on every machine.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let [word, ..] = philox4x32([last as u32, 0, 0, 0], [SHUFFLE_SEED, 0]);
        order.swap(last, word as usize % (last + 1));
    }
    order
}

impl Set {
    fn take(&self, rows: &[usize]) -> Self {
        let image = |&row: &usize| self.images[row * PIXELS..][..PIXELS].iter().copied();
        Self {
            images: rows.iter().flat_map(image).collect(),
            labels: rows.iter().map(|&row| self.labels[row]).collect(),
        }
    }
}
