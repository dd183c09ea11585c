//! System calls that no caged program may make, as a filter of the kernel's.
//!
//! What they make is memory that stands in no process, no folder and no descriptor once it was let go, or
//! that is shared with programs outside the cage: nobody could bound it.

/// One instruction of the kernel's filter language.
struct Instruction(u16, u8, u8, u32);

/// Loads a word of the call.
const LOAD: u16 = 0x20;
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
const NO_SPACE: u32 = REFUSED | 28;

/// Offsets in what the filter is shown of a call.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const SECOND_ARGUMENT: u32 = 24;

/// Bytes of one segment of System V shared memory. The kernel keeps 4096 of them, 64 MiB together.
const SEGMENT_BYTES: u32 = 16 << 10;

/// Numbers of system calls on one kind of processor.
struct Calls {
    machine: u32,
    /// Files in memory (two kinds), semaphores and messages of System V, and the kernel's key rings, which
    /// programs of one user share across all walls.
    unknown: [u32; 7],
    shmget: u32,
}

#[cfg(target_arch = "x86_64")]
const CALLS: Option<Calls> = Some(Calls { machine: 0xc000_003e, unknown: [319, 447, 64, 68, 248, 249, 250], shmget: 29 });
#[cfg(target_arch = "aarch64")]
const CALLS: Option<Calls> = Some(Calls { machine: 0xc000_00b7, unknown: [279, 447, 190, 186, 217, 218, 219], shmget: 194 });
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: Option<Calls> = None;

/// The filter for `--seccomp`; `None` on a processor whose numbers are not known here.
///
/// Calls of another machine's numbering (32-bit programs) are refused, or they would be the way around.
pub(super) fn program() -> Option<Vec<u8>> {
    let calls = CALLS?;
    let refuse = |number: u32, verdict: u32| [Instruction(EQUAL, 0, 1, number), Instruction(RETURN, 0, 0, verdict)];
    let mut filter = vec![
        Instruction(LOAD, 0, 0, MACHINE),
        Instruction(EQUAL, 1, 0, calls.machine),
        Instruction(RETURN, 0, 0, NOT_KNOWN),
        Instruction(LOAD, 0, 0, NUMBER),
    ];
    #[cfg(target_arch = "x86_64")]
    filter.extend([Instruction(AT_LEAST, 0, 1, 0x4000_0000), Instruction(RETURN, 0, 0, NOT_KNOWN)]);
    filter.extend(calls.unknown.into_iter().flat_map(|number| refuse(number, NOT_KNOWN)));
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
