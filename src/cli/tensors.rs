//! Values of a session from and to safetensors files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use stepgraph::file;
use stepgraph::ir::{ConstValue, DType, Program, Role, Shape, Symbol, Writer};
use stepgraph::runtime::{Session, TensorData};
use tempfile::NamedTempFile;

use super::failure::Failure;

/// Loads the tensors of a file: inputs, parameters, states, groups, and host scalars of one element. Gives the names of those
/// that only a step writes (outputs, temps, device scalars): they are left out, so that a dump can be loaded.
pub(super) fn load(session: &mut Session, program: &Program, path: &Path) -> Result<Vec<String>, Failure> {
    let wrong = |what: String| Failure::program(format_args!("{}: {what}", path.display()));
    let bytes = file::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("is no safetensors file: {error}")))?;
    let symbols = program.symbols();
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let is_written_by_steps = |name: &str| match symbols.get(name) {
        Some(Symbol::Buffer(buffer)) => matches!(program.buffers[*buffer].role, Role::Temp | Role::Output),
        Some(Symbol::Scalar(scalar)) => program.scalars[*scalar].writer == Writer::Device,
        Some(Symbol::Group(_)) | None => false,
    };
    let (left_out, tensors): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|(name, _)| is_written_by_steps(name));
    for (name, tensor) in &tensors {
        let Some(dtype) = dtype_of(tensor.dtype()) else {
            let types = "f32, bf16, i32 or u32";
            return Err(wrong(format!("`{name}` is {:?}: tensors are {types}", tensor.dtype())));
        };
        match symbols.get(name.as_str()) {
            Some(Symbol::Scalar(_)) => {
                let bits = <[u8; 4]>::try_from(tensor.data()).ok().map(u32::from_le_bytes);
                let value = bits.and_then(|bits| ConstValue::from_bits(dtype, bits));
                let value = value.ok_or_else(|| wrong(format!("`{name}` is a scalar: give one f32, i32 or u32")))?;
                session.set_by_name(name, value)?;
            }
            Some(Symbol::Buffer(buffer)) => {
                let shape = program.buffers[*buffer].shape;
                let found = tensor.shape();
                if !shape.dims().iter().map(|&dim| dim as usize).eq(found.iter().copied()) {
                    return Err(wrong(format!("`{name}` has the shape {found:?}, expected {shape}")));
                }
                session.write_by_name(name, dtype, tensor.data())?;
            }
            Some(Symbol::Group(_)) => session.write_by_name(name, dtype, tensor.data())?,
            None => {
                return Err(wrong(format!("`{name}` is no input, parameter, state, group or scalar of the program")));
            }
        }
    }
    Ok(left_out.into_iter().map(|(name, _)| name).collect())
}

/// The note about tensors that were not loaded.
pub(super) fn note_left_out(names: &[String], path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    if !names.is_empty() {
        let path = path.display();
        writeln!(out, "not loaded from {path}, because only steps write them: {}", names.join(", "))?;
    }
    Ok(())
}

/// Everything that a session holds after a launch, by name: parameters, states, outputs, tapped temps, scalars.
pub(super) fn collect(session: &mut Session, program: &Program) -> Result<Vec<(String, TensorData)>, Failure> {
    let mut found = Vec::new();
    for buffer in program.buffers.values() {
        let kept = match buffer.role {
            Role::Param | Role::State | Role::Output => true,
            Role::Temp => buffer.tap,
            Role::Input => false,
        };
        if !kept {
            continue;
        }
        match session.read_by_name(&buffer.name) {
            Ok(data) => found.push((buffer.name.clone(), data)),
            // A tapped temp of another step holds nothing.
            Err(_) if buffer.role == Role::Temp => {}
            Err(error) => return Err(error.into()),
        }
    }
    for scalar in program.scalars.values() {
        let value = session.read_scalar_by_name(&scalar.name)?;
        let bytes = value.bits().to_le_bytes().to_vec();
        found.push((scalar.name.clone(), TensorData { dtype: value.dtype(), shape: Shape::SCALAR, bytes }));
    }
    Ok(found)
}

/// The safetensors format keeps this name for its metadata.
const RESERVED: &str = "__metadata__";

/// Where a file of this name goes; an error where it cannot, so that it comes before the work and not after it.
pub(super) fn place(path: &Path) -> Result<PathBuf, Failure> {
    file::place_of(path).map_err(|error| Failure::program(format_args!("cannot write {}: {error}", path.display())))
}

/// Writes a file in one piece: what was there stays until all of it is written.
pub(super) fn save(path: &Path, tensors: &[(String, TensorData)]) -> Result<(), Failure> {
    let wrong =
        |what: &dyn std::fmt::Display| Failure::program(format_args!("cannot write {}: {what}", path.display()));
    let place = place(path)?;
    if tensors.iter().any(|(name, _)| name == RESERVED) {
        return Err(wrong(&format!("safetensors files keep the name `{RESERVED}`: rename the buffer or scalar")));
    }
    let views = tensors.iter().map(|(name, data)| {
        let shape = data.shape.dims().iter().map(|&dim| dim as usize).collect();
        TensorView::new(safetensors_dtype(data.dtype), shape, &data.bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    let bytes = serialize(views, None).map_err(|error| wrong(&error))?;
    let mut file = unfinished_in(file::folder_of(&place)).map_err(|error| wrong(&error))?;
    file.write_all(&bytes).map_err(|error| wrong(&error))?;
    file.as_file().sync_all().map_err(|error| wrong(&error))?;
    file.persist(place).map_err(|error| wrong(&error.error))?;
    Ok(())
}

fn unfinished_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    let builder = {
        use std::os::unix::fs::PermissionsExt;
        // What any new file has: the process's mask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666))
    };
    builder.tempfile_in(folder)
}

const fn dtype_of(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::I32 => Some(DType::I32),
        Dtype::U32 => Some(DType::U32),
        _ => None,
    }
}

const fn safetensors_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
    }
}
