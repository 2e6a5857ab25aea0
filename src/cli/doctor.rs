//! `stepgraph doctor`: what CUDA is here?

use std::io::Write;

use stepgraph::cuda::probe::{self, Library};

use super::failure::Failure;

/// Says what is found and what is missing. A machine without a GPU is no failure: programs run on its CPU.
pub(super) fn run(out: &mut impl Write) -> Result<(), Failure> {
    for library in Library::ALL {
        match library.require() {
            Ok(()) => writeln!(out, "{:15} found", library.name())?,
            Err(_) => writeln!(out, "{:15} missing: {}", library.name(), library.remedy())?,
        }
    }
    let usable = devices(out)?;
    writeln!(out, "{:15} ready: `--device host` needs nothing else", "host")?;
    let complete = Library::ALL.into_iter().all(Library::is_present);
    match (usable, complete) {
        (true, true) => writeln!(out, "\n`--device auto` runs on the GPU")?,
        (true, false) => {
            writeln!(out, "\n`--device auto` takes the GPU, which fails until the libraries are installed")?
        }
        (false, _) => writeln!(out, "\n`--device auto` runs on the host")?,
    }
    Ok(())
}

fn devices(out: &mut impl Write) -> Result<bool, Failure> {
    let devices = match probe::devices() {
        Ok(devices) => devices,
        Err(error) => {
            writeln!(out, "{:15} {error}", "device")?;
            return Ok(false);
        }
    };
    for device in &devices {
        let (major, minor) = (device.driver / 1000, device.driver % 1000 / 10);
        let (sm, gib) = (device.sm, device.memory >> 30);
        let (name, count) = (&device.name, device.multiprocessors);
        let key = format!("cuda:{}", device.ordinal);
        writeln!(out, "{key:15} {name}: sm_{sm}, {count} multiprocessors, {gib} GiB, driver for CUDA {major}.{minor}")?;
    }
    if devices.is_empty() {
        writeln!(out, "{:15} the driver reports none", "device")?;
    }
    Ok(!devices.is_empty())
}
