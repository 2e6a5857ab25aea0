//! Which device a session runs on.

use std::fmt;
use std::str::FromStr;

use super::error::RuntimeError;
use crate::cuda::probe;

/// A device that a session can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The CPU.
    Host,
    /// A CUDA device.
    Cuda {
        /// Its number, as the driver counts.
        ordinal: u32,
    },
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Reads `host`, `cuda`, `cuda:N`, or `auto`.
impl FromStr for Device {
    type Err = RuntimeError;

    fn from_str(text: &str) -> Result<Self, RuntimeError> {
        match text {
            "host" => Ok(Self::Host),
            "cuda" => Ok(Self::Cuda { ordinal: 0 }),
            "auto" => Self::auto(),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                ordinal
                    .map(|ordinal| Self::Cuda { ordinal })
                    .ok_or_else(|| RuntimeError::UnknownDevice { text: text.to_owned() })
            }
        }
    }
}

impl Device {
    /// The first CUDA device where a usable driver and a device are found, the host otherwise.
    ///
    /// # Errors
    /// None at present; a driver that is found broken, not absent, may become one.
    pub fn auto() -> Result<Self, RuntimeError> {
        let found = probe::devices().is_ok_and(|devices| !devices.is_empty());
        Ok(if found { Self::Cuda { ordinal: 0 } } else { Self::Host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: every spelling of a device that the command line documents, and nothing else.
    #[test]
    fn devices_are_read_from_text() {
        let read = |text: &str| text.parse::<Device>().ok();
        assert_eq!(read("host"), Some(Device::Host));
        assert_eq!(read("cuda"), Some(Device::Cuda { ordinal: 0 }));
        assert_eq!(read("cuda:3"), Some(Device::Cuda { ordinal: 3 }));
        assert!(read("auto").is_some());
        assert_eq!([read("gpu"), read("cuda:"), read("cuda:-1"), read("")], [None; 4]);
        assert_eq!(read(&Device::Cuda { ordinal: 2 }.to_string()), Some(Device::Cuda { ordinal: 2 }));
    }
}
