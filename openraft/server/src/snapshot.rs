//! A snapshot as a file: a header, then parts, each with its length and CRC-32:
//! the head, the chunks, and an empty part at the end.
//!
//! It is written beside the old one and renamed, so there is always a whole one.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::codec::{Input, Malformed};
use crate::state::{Incoming, State};
use crate::types::MAX_TEXT;
use crate::wal::sync_dir;

const MAGIC: &[u8; 8] = b"rrigsnp1";
/// Larger than any part can be.
const MAX_PART: usize = MAX_TEXT + (1 << 20);

/// The snapshot in a folder.
pub struct SnapshotFile {
    dir: PathBuf,
    owner: u64,
}

impl SnapshotFile {
    /// Reads the snapshot in a folder, if one is there. `owner` marks it; one
    /// with another mark is refused.
    pub fn open(dir: &Path, owner: u64) -> Result<(Option<State>, Self), String> {
        let snapshot = Self { dir: dir.to_owned(), owner };
        let path = snapshot.path();
        let state = match File::open(&path) {
            Ok(file) => {
                Some(snapshot.read(BufReader::new(file)).map_err(|e| format!("{}: {e}", path.display()))?)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(format!("{}: {e}", path.display())),
        };
        Ok((state, snapshot))
    }

    /// Returns when the state is on disk.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let temporary = self.dir.join("snapshot.new");
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", temporary.display()));
        self.write(state, &temporary).map_err(named)?;
        fs::rename(&temporary, self.path()).map_err(named)?;
        sync_dir(&self.dir)
    }

    fn path(&self) -> PathBuf {
        self.dir.join("snapshot")
    }

    fn write(&self, state: &State, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(MAGIC)?;
        file.write_all(&self.owner.to_le_bytes())?;
        let mut part = Vec::new();
        state.put_head(&mut part);
        write_part(&mut file, &part)?;
        let mut chunks = state.chunks();
        loop {
            part.clear();
            let more = chunks.next_chunk(&mut part);
            write_part(&mut file, &part)?;
            if !more {
                return file.sync_all();
            }
        }
    }

    fn read(&self, mut file: impl Read) -> io::Result<State> {
        let mut header = [0; 16];
        file.read_exact(&mut header)?;
        if header[..8] != MAGIC[..] {
            return Err(Malformed("not a snapshot").into());
        }
        if header[8..] != self.owner.to_le_bytes() {
            return Err(Malformed("a snapshot of another node").into());
        }
        let mut part = Vec::new();
        read_part(&mut file, &mut part)?;
        let mut incoming = Incoming::new(&mut Input(&part))?;
        loop {
            read_part(&mut file, &mut part)?;
            if part.is_empty() {
                return Ok(incoming.finish()?);
            }
            incoming.chunk(&mut Input(&part))?;
        }
    }
}

fn write_part(file: &mut impl Write, part: &[u8]) -> io::Result<()> {
    file.write_all(&(part.len() as u32).to_le_bytes())?;
    file.write_all(&crc32fast::hash(part).to_le_bytes())?;
    file.write_all(part)
}

fn read_part(file: &mut impl Read, part: &mut Vec<u8>) -> io::Result<()> {
    let mut head = [0; 8];
    file.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > MAX_PART {
        return Err(Malformed("a part is longer than allowed").into());
    }
    part.resize(length, 0);
    file.read_exact(part)?;
    if crc32fast::hash(part).to_le_bytes() != head[4..] {
        return Err(Malformed("a part is damaged: its checksum differs").into());
    }
    Ok(())
}
