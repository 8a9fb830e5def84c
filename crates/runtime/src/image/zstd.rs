//! Streams compressed with zstd: any number of frames, of which those to be skipped are (RFC 8878, 3.1). Layers that can be
//! fetched in parts consist of many.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Reads the plain content of all frames, one after the other. A frame whose window is over 128 MiB is refused.
pub(super) struct Frames<R> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    /// Whether a frame has begun and not been read to its end.
    within: bool,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source: BufReader::new(source), decoder: FrameDecoder::new(), within: false }
    }

    /// Begins the next frame with content. False if there is none.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.within = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }

    /// All of a frame is decoded.
    fn end_frame(&mut self) -> io::Result<()> {
        self.within = false;
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(said), Some(found)) if said != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.within && self.decoder.can_collect() > 0 {
                return self.decoder.read(to);
            }
            if self.within && self.decoder.is_finished() {
                self.end_frame()?;
            }
            if !self.within && !self.next_frame()? {
                return Ok(0);
            }
            self.decoder
                .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    fn read(stream: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = vec![];
        Frames::new(stream).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn frames_follow_each_other_and_those_to_be_skipped_are() {
        let (first, second) = (vec![7; 300_000], b"and more".to_vec());
        let to_skip = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"toc"].concat();
        let stream = [frame(&first), to_skip.clone(), frame(&[]), frame(&second), to_skip].concat();
        assert_eq!(read(&stream).unwrap(), [first, second].concat());
    }

    #[test]
    fn what_is_cut_off_or_changed_is_an_error() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|number| (number % 1_000).to_le_bytes()).collect();
        let whole = frame(&text);
        for len in (1..whole.len()).step_by(97) {
            read(&whole[..len]).unwrap_err();
        }
        let mut changed = whole.clone();
        let at = changed.len() / 2;
        changed[at] ^= 1;
        assert_ne!(read(&changed).ok(), Some(text));
        read(&[0x50, 0x2a, 0x4d, 0x18, 9, 0, 0, 0, 1]).unwrap_err();
    }
}
