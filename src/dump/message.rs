//! A tensor as the bytes of its file, and the memory that those pass through.
//!
//! Blocks are of the file, not of the tensor: with the header before them, blocks of the tensor would start in the middle
//! of blake3's chunks, and it hashes whole runs of those several times faster. They are kept for the next tensor, for
//! memory that is new from the kernel costs more than what is done with it here.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex};

use crate::base::ids::ValueName;
use crate::base::sync::lock;
use crate::onnx::tensor_header;
use crate::tensor::{SharedTensor, TensorDesc};

/// What is copied, hashed and written at a time. It stays in the second-level cache.
pub(super) const BLOCK_BYTES: usize = 128 << 10;

/// The most that is kept of blocks that nobody uses.
const KEPT_BYTES: usize = 64 << 20;

/// Blocks of memory, used again and again.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<Vec<Box<[u8]>>>);

impl Blocks {
    /// For `len` bytes, at most a block's: of any content.
    fn take(&self, len: usize) -> Box<[u8]> {
        let kept = if len == BLOCK_BYTES { lock(&self.0).pop() } else { None };
        kept.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    fn give_back(&self, block: Box<[u8]>) {
        let mut kept = lock(&self.0);
        if block.len() == BLOCK_BYTES && kept.len() < KEPT_BYTES / BLOCK_BYTES {
            kept.push(block);
        }
    }
}

/// A TensorProto: what stands before the elements, and these.
#[derive(Debug)]
pub(super) struct Message<'a> {
    name: &'a str,
    tensor: SharedTensor<'a>,
    header: Vec<u8>,
}

impl<'a> Message<'a> {
    pub(super) fn new(name: &'a str, tensor: SharedTensor<'a>) -> Self {
        Self { name, tensor, header: tensor_header(name, tensor) }
    }

    fn n_bytes(&self) -> usize {
        self.header.len() + self.tensor.bytes().len()
    }

    /// Where its blocks start, and their lengths.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let n_bytes = self.n_bytes();
        (0..n_bytes).step_by(BLOCK_BYTES).map(move |from| (from, BLOCK_BYTES.min(n_bytes - from)))
    }

    /// Copies what stands from `from` on.
    fn copy_out(&self, from: usize, target: &mut [u8]) {
        let header = self.header.get(from..).unwrap_or_default();
        let (before, elements) = target.split_at_mut(header.len().min(target.len()));
        before.copy_from_slice(&header[..before.len()]);
        let first = (from + before.len()).saturating_sub(self.header.len());
        self.tensor.bytes().slice(first..first + elements.len()).copy_out(elements);
    }

    /// A private copy.
    pub(super) fn to_owned(&self, memory: &Arc<Blocks>) -> Copied {
        let pieces = self.blocks().map(|(from, len)| {
            let mut block = memory.take(len);
            self.copy_out(from, &mut block);
            block
        });
        let (pieces, memory) = (pieces.collect(), Arc::clone(memory));
        Copied { name: self.name.to_owned(), desc: self.tensor.desc(), pieces, memory }
    }

    /// Hands over private copies, block by block.
    fn read(&self, memory: &Blocks, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut block = memory.take(BLOCK_BYTES.min(self.n_bytes()));
        let read = self.blocks().try_for_each(|(from, len)| {
            self.copy_out(from, &mut block[..len]);
            visit(&block[..len])
        });
        memory.give_back(block);
        read
    }
}

/// The private copy of a [`Message`].
#[derive(Debug)]
pub(super) struct Copied {
    name: ValueName,
    pub(super) desc: TensorDesc,
    pieces: Vec<Box<[u8]>>,
    memory: Arc<Blocks>,
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.pieces.drain(..).for_each(|piece| self.memory.give_back(piece));
    }
}

/// What a file is to hold.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// It may change at any time.
    Shared(Message<'a>),
    /// It stays as it is.
    Private(Copied),
}

impl<'a> Content<'a> {
    pub(super) fn shared(name: &'a str, tensor: &SharedTensor<'a>) -> Self {
        Content::Shared(Message::new(name, *tensor))
    }

    /// The tensor's.
    pub(super) fn name(&self) -> &str {
        match self {
            Content::Shared(message) => message.name,
            Content::Private(copied) => &copied.name,
        }
    }

    /// The tensor's.
    pub(super) fn desc(&self) -> TensorDesc {
        match self {
            Content::Shared(message) => message.tensor.desc(),
            Content::Private(copied) => copied.desc.clone(),
        }
    }

    /// Of the file.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Content::Shared(message) => message.n_bytes(),
            Content::Private(copied) => copied.pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    fn read(&self, memory: &Blocks, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Content::Shared(message) => message.read(memory, visit),
            Content::Private(copied) => copied.pieces.iter().try_for_each(|piece| visit(piece)),
        }
    }

    /// Of what it is now. `memory`: what it is read through.
    pub(super) fn hash(&self, memory: &Blocks) -> io::Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        self.read(memory, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finalize())
    }

    /// Returns the hash of what was written. `hash`: what [`Content::hash`] gave.
    pub(super) fn write(&self, memory: &Blocks, file: &mut File, hash: blake3::Hash) -> io::Result<blake3::Hash> {
        if let Content::Private(_) = self {
            self.read(memory, |piece| file.write_all(piece))?;
            return Ok(hash);
        }
        let mut hasher = blake3::Hasher::new();
        self.read(memory, |piece| {
            hasher.update(piece);
            file.write_all(piece)
        })?;
        Ok(hasher.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorBuf};

    /// Lengths around a block's, where header and elements meet anywhere in it.
    #[test]
    fn blocks_of_both_kinds_are_the_header_and_the_elements() {
        let memory = Arc::new(Blocks::default());
        for n_name in [1, 100, BLOCK_BYTES - 5, BLOCK_BYTES, BLOCK_BYTES + 1] {
            for n in [0, 1, BLOCK_BYTES - 120, BLOCK_BYTES, 2 * BLOCK_BYTES + 5] {
                let desc = TensorDesc::new(DType::U8, [n as i64]).unwrap();
                let elements: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
                let tensor = TensorBuf::new(desc.clone(), elements.clone()).unwrap();
                let name = "x".repeat(n_name);
                let whole = [tensor_header(&name, tensor.shared()), elements].concat();
                let message = Message::new(&name, tensor.shared());
                let copied = message.to_owned(&memory);
                for content in [Content::Shared(message), Content::Private(copied)] {
                    let mut read = Vec::new();
                    let collect = |piece: &[u8]| {
                        read.extend_from_slice(piece);
                        Ok(())
                    };
                    content.read(&memory, collect).unwrap();
                    assert_eq!((content.n_bytes(), read == whole), (whole.len(), true), "{n_name} {n}");
                    assert_eq!(content.hash(&memory).unwrap(), blake3::hash(&whole));
                    assert_eq!((content.name(), content.desc()), (name.as_str(), desc.clone()));
                }
            }
        }
    }

    #[test]
    fn whole_blocks_are_used_again() {
        let memory = Arc::new(Blocks::default());
        let tensor = TensorBuf::zeros(TensorDesc::new(DType::U8, [2 * BLOCK_BYTES as i64]).unwrap());
        let message = Message::new("x", tensor.shared());
        for _ in 0..3 {
            let copies = [(); 2].map(|()| message.to_owned(&memory));
            assert_eq!((copies[0].pieces.len(), lock(&memory.0).len()), (3, 0));
            drop(copies);
            assert_eq!(lock(&memory.0).len(), 4);
        }
    }
}
