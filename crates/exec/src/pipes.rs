//! Hands the program's pipes to the keeper. Only stdin, stdout and stderr survive the start of a process without unsafe
//! code, and the keeper needs one of them for the control socket; so the three pipes travel over that socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The program's ends: stdin, stdout, stderr.
pub(crate) type Pipes = [OwnedFd; 3];

// Descriptors need a byte to travel with.
const GREETING: u8 = b'P';

pub(crate) fn send(socket: impl AsFd, pipes: &Pipes) -> io::Result<()> {
    let borrowed = pipes.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !message.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("no room for three descriptors in a message"));
    }
    sendmsg(socket, &[IoSlice::new(&[GREETING])], &mut message, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(crate) fn receive(socket: impl AsFd) -> io::Result<Pipes> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut greeting = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut greeting)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let received: Vec<OwnedFd> = message
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    received.try_into().map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "the worker sent no pipes"))
}
