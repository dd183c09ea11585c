//! System calls that no caged program may make, as a filter of the kernel's.
//!
//! What they make is memory, or files, that stand in no process, no folder and no descriptor once they were let
//! go, or that are shared with programs outside the cage: nobody could bound them. And no thread may have
//! descriptors of its own: those of a process are looked at, not those of each of its threads.

/// One instruction of the kernel's filter language.
#[derive(Clone, Copy)]
struct Instruction(u16, u8, u8, u32);

/// Loads a word of the call.
const LOAD: u16 = 0x20;
/// Keeps some bits of it.
const AND: u16 = 0x54;
/// Compares it, and jumps.
const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
#[cfg(target_arch = "x86_64")]
const AT_LEAST: u16 = 0x35;
/// Ends the filter with a verdict.
const RETURN: u16 = 0x06;

const ALLOWED: u32 = 0x7fff_0000;
const REFUSED: u32 = 0x0005_0000;
/// As on a kernel that does not know the call: programs have another way then.
const NOT_KNOWN: u32 = REFUSED | 38;
/// As for files of a kind that the call does not serve: programs have another way then, too.
const NOT_SERVED: u32 = REFUSED | 22;
const NO_SPACE: u32 = REFUSED | 28;
const NOT_PERMITTED: u32 = REFUSED | 1;

/// Offsets in what the filter is shown of a call.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;
const THIRD_ARGUMENT: u32 = 32;

/// Bytes of one segment of System V shared memory. The kernel keeps 4096 of them, 64 MiB together.
const SEGMENT_BYTES: u32 = 16 << 10;

/// Flags of `clone` and `unshare`: a new task shares descriptors, or is a thread.
const CLONE_FILES: u32 = 0x400;
const CLONE_THREAD: u32 = 0x1_0000;
/// A flag of `close_range`: descriptors are the thread's own from now on.
const CLOSE_RANGE_UNSHARE: u32 = 2;

/// Numbers that are the same on both kinds of processor: files in memory that nobody can look into, rings
/// (three calls) that keep files and work past all filters, and the call that makes tasks of what stands in
/// memory, where a filter cannot look.
const UNKNOWN: [u32; 5] = [447, 425, 426, 427, 435];
const CLOSE_RANGE: u32 = 436;

/// Numbers of system calls on one kind of processor.
struct Calls {
    machine: u32,
    /// Files in memory, semaphores and messages of System V, and the kernel's key rings, which
    /// programs of one user share across all walls.
    unknown: [u32; 6],
    /// `sendfile`, `splice`, `tee`, `vmsplice`: a pipe or a socket that was handed a page in place of a copy keeps
    /// the whole of the huge one it is part of, be it a program's or a deleted file's.
    handing: [u32; 4],
    shmget: u32,
    clone: u32,
    unshare: u32,
}

#[cfg(target_arch = "x86_64")]
const CALLS: Option<Calls> = Some(Calls {
    machine: 0xc000_003e,
    unknown: [319, 64, 68, 248, 249, 250],
    handing: [40, 275, 276, 278],
    shmget: 29,
    clone: 56,
    unshare: 272,
});
#[cfg(target_arch = "aarch64")]
const CALLS: Option<Calls> = Some(Calls {
    machine: 0xc000_00b7,
    unknown: [279, 190, 186, 217, 218, 219],
    handing: [71, 76, 77, 75],
    shmget: 194,
    clone: 220,
    unshare: 97,
});
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: Option<Calls> = None;

/// The filter for `--seccomp`; `None` on a processor whose numbers are not known here.
///
/// Calls of another machine's numbering (32-bit programs) are refused, or they would be the way around.
pub(super) fn program() -> Option<Vec<u8>> {
    let calls = CALLS?;
    let mut filter = vec![
        Instruction(LOAD, 0, 0, MACHINE),
        Instruction(EQUAL, 1, 0, calls.machine),
        Instruction(RETURN, 0, 0, NOT_KNOWN),
        Instruction(LOAD, 0, 0, NUMBER),
    ];
    #[cfg(target_arch = "x86_64")]
    filter.extend([Instruction(AT_LEAST, 0, 1, 0x4000_0000), Instruction(RETURN, 0, 0, NOT_KNOWN)]);
    let refuse = |number: u32, verdict: u32| [Instruction(EQUAL, 0, 1, number), Instruction(RETURN, 0, 0, verdict)];
    filter.extend(calls.unknown.into_iter().chain(UNKNOWN).flat_map(|number| refuse(number, NOT_KNOWN)));
    filter.extend(calls.handing.into_iter().flat_map(|number| refuse(number, NOT_SERVED)));
    filter.extend(
        [
            refuse_flags(calls.clone, FIRST_ARGUMENT, CLONE_THREAD | CLONE_FILES, CLONE_THREAD),
            refuse_flags(calls.unshare, FIRST_ARGUMENT, CLONE_FILES, CLONE_FILES),
            refuse_flags(CLOSE_RANGE, THIRD_ARGUMENT, CLOSE_RANGE_UNSHARE, CLOSE_RANGE_UNSHARE),
        ]
        .as_flattened(),
    );
    filter.extend([
        Instruction(EQUAL, 0, 5, calls.shmget),
        // The upper half of the size, then the lower.
        Instruction(LOAD, 0, 0, SECOND_ARGUMENT + 4),
        Instruction(EQUAL, 0, 2, 0),
        Instruction(LOAD, 0, 0, SECOND_ARGUMENT),
        Instruction(GREATER, 0, 1, SEGMENT_BYTES),
        Instruction(RETURN, 0, 0, NO_SPACE),
        Instruction(RETURN, 0, 0, ALLOWED),
    ]);
    let bytes = filter.iter().flat_map(|Instruction(code, then, or, value)| {
        let [a, b] = code.to_ne_bytes();
        let [c, d, e, f] = value.to_ne_bytes();
        [a, b, *then, *or, c, d, e, f]
    });
    Some(bytes.collect())
}

/// Refuses the call `number` when `argument`, of whose bits those of `mask` count, is `flags`. The number is
/// loaded before and, for other calls, after.
fn refuse_flags(number: u32, argument: u32, mask: u32, flags: u32) -> [Instruction; 6] {
    [
        Instruction(EQUAL, 0, 5, number),
        Instruction(LOAD, 0, 0, argument),
        Instruction(AND, 0, 0, mask),
        Instruction(EQUAL, 0, 1, flags),
        Instruction(RETURN, 0, 0, NOT_PERMITTED),
        Instruction(RETURN, 0, 0, ALLOWED),
    ]
}
