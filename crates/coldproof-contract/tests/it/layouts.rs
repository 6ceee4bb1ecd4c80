//! One small odd shape a layout, with the index tables written by hand.
//!
//! A table lists the logical elements of a slot in row-major order: `q7` is element 7 (row-major)
//! of source `q`, `.` is padding. Moves say the same as boxes: `q[4..8,0..2] qkv[0..4,0..2]`.

use coldproof_contract::routing::{Half, HeadRole, Section, Sharding, SourceRule, Stage};
use coldproof_contract::words::{Dtype, Fragment, Span};

/// What one rank's slot holds.
pub(crate) struct Table {
    pub(crate) rank: u32,
    pub(crate) slot: &'static str,
    pub(crate) shape: &'static [u64],
    pub(crate) elements: &'static str,
    pub(crate) moves: &'static [&'static str],
}

/// One layout.
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) tp: u32,
    pub(crate) rules: Vec<SourceRule>,
    /// Other names of slots.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    pub(crate) tables: Vec<Table>,
}

fn rule(source: &str, shape: &[u64], slot: &str, sharding: Sharding) -> SourceRule {
    SourceRule {
        source: source.to_owned(),
        dtype: Dtype::Bf16,
        shape: shape.to_vec(),
        slot: slot.into(),
        sharding,
        stage: Stage::Everywhere,
    }
}

const fn table(
    rank: u32,
    slot: &'static str,
    shape: &'static [u64],
    elements: &'static str,
    moves: &'static [&'static str],
) -> Table {
    Table { rank, slot, shape, elements, moves }
}

/// `name[0..2,1..3]` as a name and a box.
pub(crate) fn parse_box(text: &str) -> (String, Fragment) {
    let (name, spans) = text.split_once('[').expect("a box has brackets");
    let spans = spans.strip_suffix(']').expect("a box has brackets");
    let span = |text: &str| {
        let (start, end) = text.split_once("..").expect("a span has two dots");
        Span::new(start.parse().expect("a number"), end.parse().expect("a number"))
    };
    let spans = spans.split(',').filter(|text| !text.is_empty()).map(span).collect();
    (name.to_owned(), Fragment(spans))
}

/// `q7` as a source and an element, `.` as padding.
pub(crate) fn parse_element(token: &str) -> Option<(String, u64)> {
    let (source, element) = token.split_at_checked(1).expect("a token");
    (source != ".").then(|| (source.to_owned(), element.parse().expect("a number")))
}

pub(crate) fn all() -> Vec<Layout> {
    let mut all = vec![replicated(), column(), row(), scalar_and_empty()];
    all.extend([vocabulary(), vocabulary_without_rows(), tied(), gate_up()]);
    all.extend([kv_heads_fewer_than_ranks(), heads_on_one_rank(), experts()]);
    all.extend([fused_experts(), fused_experts_on_one_rank(), experts_by_inputs()]);
    all.extend([encoder_that_the_ranks_divide(), encoder_that_the_ranks_do_not_divide()]);
    all.push(stacked());
    all.push(sections());
    all
}

fn replicated() -> Layout {
    Layout {
        name: "replicated [3] on 2 ranks",
        tp: 2,
        rules: vec![rule("n", &[3], "norm", Sharding::Replicated)],
        aliases: &[],
        tables: vec![
            table(0, "norm", &[3], "n0 n1 n2", &["n[0..3] norm[0..3]"]),
            table(1, "norm", &[3], "n0 n1 n2", &["n[0..3] norm[0..3]"]),
        ],
    }
}

fn column() -> Layout {
    Layout {
        name: "column [6, 2] on 2 ranks",
        tp: 2,
        rules: vec![rule("c", &[6, 2], "up", Sharding::Column)],
        aliases: &[],
        tables: vec![
            table(0, "up", &[3, 2], "c0 c1 c2 c3 c4 c5", &["c[0..3,0..2] up[0..3,0..2]"]),
            table(1, "up", &[3, 2], "c6 c7 c8 c9 c10 c11", &["c[3..6,0..2] up[0..3,0..2]"]),
        ],
    }
}

fn row() -> Layout {
    Layout {
        name: "row [2, 6] on 2 ranks",
        tp: 2,
        rules: vec![rule("r", &[2, 6], "down", Sharding::Row)],
        aliases: &[],
        tables: vec![
            table(0, "down", &[2, 3], "r0 r1 r2 r6 r7 r8", &["r[0..2,0..3] down[0..2,0..3]"]),
            table(1, "down", &[2, 3], "r3 r4 r5 r9 r10 r11", &["r[0..2,3..6] down[0..2,0..3]"]),
        ],
    }
}

fn scalar_and_empty() -> Layout {
    Layout {
        name: "a scalar and an empty tensor on 2 ranks",
        tp: 2,
        rules: vec![
            rule("s", &[], "scale", Sharding::Replicated),
            rule("z", &[0, 3], "empty", Sharding::Column),
        ],
        aliases: &[],
        tables: vec![
            table(0, "scale", &[], "s0", &["s[] scale[]"]),
            table(0, "empty", &[0, 3], "", &["z[0..0,0..3] empty[0..0,0..3]"]),
            table(1, "scale", &[], "s0", &["s[] scale[]"]),
            table(1, "empty", &[0, 3], "", &["z[0..0,0..3] empty[0..0,0..3]"]),
        ],
    }
}

fn vocabulary() -> Layout {
    Layout {
        name: "vocabulary of 5 in multiples of 2 on 2 ranks",
        tp: 2,
        rules: vec![rule("e", &[5, 2], "embed", Sharding::Vocabulary { multiple: 2 })],
        aliases: &[],
        tables: vec![
            table(
                0,
                "embed",
                &[4, 2],
                "e0 e1 e2 e3 e4 e5 e6 e7",
                &["e[0..4,0..2] embed[0..4,0..2]"],
            ),
            table(1, "embed", &[4, 2], "e8 e9 . . . . . .", &["e[4..5,0..2] embed[0..1,0..2]"]),
        ],
    }
}

fn vocabulary_without_rows() -> Layout {
    Layout {
        name: "vocabulary of 3 in multiples of 2 on 4 ranks",
        tp: 4,
        rules: vec![rule("e", &[3, 2], "embed", Sharding::Vocabulary { multiple: 2 })],
        aliases: &[],
        tables: vec![
            table(0, "embed", &[2, 2], "e0 e1 e2 e3", &["e[0..2,0..2] embed[0..2,0..2]"]),
            table(1, "embed", &[2, 2], "e4 e5 . .", &["e[2..3,0..2] embed[0..1,0..2]"]),
            table(2, "embed", &[2, 2], ". . . .", &[]),
            table(3, "embed", &[2, 2], ". . . .", &[]),
        ],
    }
}

fn tied() -> Layout {
    Layout {
        name: "tied heads of 3 on 1 rank",
        tp: 1,
        rules: vec![rule("e", &[3, 2], "embed", Sharding::Vocabulary { multiple: 1 })],
        aliases: &[("head", "embed")],
        tables: vec![table(
            0,
            "embed",
            &[3, 2],
            "e0 e1 e2 e3 e4 e5",
            &["e[0..2,0..2] head[0..2,0..2]", "e[2..3,0..2] embed[2..3,0..2]"],
        )],
    }
}

fn gate_up() -> Layout {
    Layout {
        name: "gate and up of 6 rows on 2 ranks",
        tp: 2,
        rules: vec![
            rule("g", &[6, 1], "gate_up", Sharding::GateUp { half: Half::Gate }),
            rule("u", &[6, 1], "gate_up", Sharding::GateUp { half: Half::Up }),
        ],
        aliases: &[],
        tables: vec![
            table(
                0,
                "gate_up",
                &[6, 1],
                "g0 g1 g2 u0 u1 u2",
                &["g[0..3,0..1] gate_up[0..3,0..1]", "u[0..3,0..1] gate_up[3..6,0..1]"],
            ),
            table(
                1,
                "gate_up",
                &[6, 1],
                "g3 g4 g5 u3 u4 u5",
                &["g[3..6,0..1] gate_up[0..3,0..1]", "u[3..6,0..1] gate_up[3..6,0..1]"],
            ),
        ],
    }
}

fn heads(
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    columns: u64,
) -> impl Iterator<Item = SourceRule> {
    let roles = [("q", HeadRole::Q, heads), ("k", HeadRole::K, kv_heads)];
    roles.into_iter().chain([("v", HeadRole::V, kv_heads)]).map(move |(source, role, own)| {
        let sharding = Sharding::Heads { role, heads, kv_heads, head_dim };
        rule(source, &[own * head_dim, columns], "qkv", sharding)
    })
}

fn kv_heads_fewer_than_ranks() -> Layout {
    Layout {
        name: "4 heads, 2 kv heads of 2 rows on 4 ranks",
        tp: 4,
        rules: heads(4, 2, 2, 1).collect(),
        aliases: &[],
        tables: vec![
            table(
                0,
                "qkv",
                &[6, 1],
                "q0 q1 k0 k1 v0 v1",
                &[
                    "q[0..2,0..1] qkv[0..2,0..1]",
                    "k[0..2,0..1] qkv[2..4,0..1]",
                    "v[0..2,0..1] qkv[4..6,0..1]",
                ],
            ),
            table(
                1,
                "qkv",
                &[6, 1],
                "q2 q3 k0 k1 v0 v1",
                &[
                    "q[2..4,0..1] qkv[0..2,0..1]",
                    "k[0..2,0..1] qkv[2..4,0..1]",
                    "v[0..2,0..1] qkv[4..6,0..1]",
                ],
            ),
            table(
                2,
                "qkv",
                &[6, 1],
                "q4 q5 k2 k3 v2 v3",
                &[
                    "q[4..6,0..1] qkv[0..2,0..1]",
                    "k[2..4,0..1] qkv[2..4,0..1]",
                    "v[2..4,0..1] qkv[4..6,0..1]",
                ],
            ),
            table(
                3,
                "qkv",
                &[6, 1],
                "q6 q7 k2 k3 v2 v3",
                &[
                    "q[6..8,0..1] qkv[0..2,0..1]",
                    "k[2..4,0..1] qkv[2..4,0..1]",
                    "v[2..4,0..1] qkv[4..6,0..1]",
                ],
            ),
        ],
    }
}

fn heads_on_one_rank() -> Layout {
    Layout {
        name: "3 heads, 1 kv head of 1 row on 1 rank",
        tp: 1,
        rules: heads(3, 1, 1, 2).collect(),
        aliases: &[],
        tables: vec![table(
            0,
            "qkv",
            &[5, 2],
            "q0 q1 q2 q3 q4 q5 k0 k1 v0 v1",
            &[
                "q[0..3,0..2] qkv[0..3,0..2]",
                "k[0..1,0..2] qkv[3..4,0..2]",
                "v[0..1,0..2] qkv[4..5,0..2]",
            ],
        )],
    }
}

fn experts() -> Layout {
    let half = |source, expert, half| {
        rule(source, &[2, 3], "w13", Sharding::ExpertGateUp { expert, experts: 2, half })
    };
    let down =
        |source, expert| rule(source, &[3, 2], "w2", Sharding::ExpertRow { expert, experts: 2 });
    Layout {
        name: "2 experts of 2 rows and 3 columns on 2 ranks",
        tp: 2,
        rules: vec![
            half("a", 0, Half::Gate),
            half("d", 0, Half::Up),
            half("b", 1, Half::Gate),
            half("e", 1, Half::Up),
            down("x", 0),
            down("y", 1),
        ],
        aliases: &[],
        tables: vec![
            table(
                0,
                "w13",
                &[2, 2, 3],
                "a0 a1 a2 d0 d1 d2 b0 b1 b2 e0 e1 e2",
                &[
                    "a[0..1,0..3] w13[0..1,0..1,0..3]",
                    "d[0..1,0..3] w13[0..1,1..2,0..3]",
                    "b[0..1,0..3] w13[1..2,0..1,0..3]",
                    "e[0..1,0..3] w13[1..2,1..2,0..3]",
                ],
            ),
            table(
                0,
                "w2",
                &[2, 3, 1],
                "x0 x2 x4 y0 y2 y4",
                &["x[0..3,0..1] w2[0..1,0..3,0..1]", "y[0..3,0..1] w2[1..2,0..3,0..1]"],
            ),
            table(
                1,
                "w13",
                &[2, 2, 3],
                "a3 a4 a5 d3 d4 d5 b3 b4 b5 e3 e4 e5",
                &[
                    "a[1..2,0..3] w13[0..1,0..1,0..3]",
                    "d[1..2,0..3] w13[0..1,1..2,0..3]",
                    "b[1..2,0..3] w13[1..2,0..1,0..3]",
                    "e[1..2,0..3] w13[1..2,1..2,0..3]",
                ],
            ),
            table(
                1,
                "w2",
                &[2, 3, 1],
                "x1 x3 x5 y1 y3 y5",
                &["x[0..3,1..2] w2[0..1,0..3,0..1]", "y[0..3,1..2] w2[1..2,0..3,0..1]"],
            ),
        ],
    }
}

fn fused_experts() -> Layout {
    Layout {
        name: "2 fused experts of 2 rows and 3 columns on 2 ranks",
        tp: 2,
        rules: vec![
            rule("f", &[2, 4, 3], "w13", Sharding::FusedExpertsGateUp),
            rule("d", &[2, 3, 2], "w2", Sharding::FusedExpertsRow),
        ],
        aliases: &[],
        tables: vec![
            table(
                0,
                "w13",
                &[2, 2, 3],
                "f0 f1 f2 f6 f7 f8 f12 f13 f14 f18 f19 f20",
                &["f[0..2,0..1,0..3] w13[0..2,0..1,0..3]", "f[0..2,2..3,0..3] w13[0..2,1..2,0..3]"],
            ),
            table(
                0,
                "w2",
                &[2, 3, 1],
                "d0 d2 d4 d6 d8 d10",
                &["d[0..2,0..3,0..1] w2[0..2,0..3,0..1]"],
            ),
            table(
                1,
                "w13",
                &[2, 2, 3],
                "f3 f4 f5 f9 f10 f11 f15 f16 f17 f21 f22 f23",
                &["f[0..2,1..2,0..3] w13[0..2,0..1,0..3]", "f[0..2,3..4,0..3] w13[0..2,1..2,0..3]"],
            ),
            table(
                1,
                "w2",
                &[2, 3, 1],
                "d1 d3 d5 d7 d9 d11",
                &["d[0..2,0..3,1..2] w2[0..2,0..3,0..1]"],
            ),
        ],
    }
}

fn stacked() -> Layout {
    let stacked = |source: &str, rows: u64, first: u64| {
        rule(source, &[rows, 2], "ab", Sharding::Stacked { first, rows: 3 })
    };
    let elements = "a0 a1 b0 b1 b2 b3";
    let moves = &["a[0..1,0..2] ab[0..1,0..2]", "b[0..2,0..2] ab[1..3,0..2]"];
    Layout {
        name: "1 and 2 stacked rows on each of 2 ranks",
        tp: 2,
        rules: vec![stacked("a", 1, 0), stacked("b", 2, 1)],
        aliases: &[],
        tables: vec![
            table(0, "ab", &[3, 2], elements, moves),
            table(1, "ab", &[3, 2], elements, moves),
        ],
    }
}

fn experts_by_inputs() -> Layout {
    Layout {
        name: "2 experts of 2 inputs and 3 outputs on 2 ranks",
        tp: 2,
        rules: vec![rule("d", &[2, 2, 3], "w2", Sharding::FusedExpertsInputs)],
        aliases: &[],
        tables: vec![
            table(
                0,
                "w2",
                &[2, 1, 3],
                "d0 d1 d2 d6 d7 d8",
                &["d[0..2,0..1,0..3] w2[0..2,0..1,0..3]"],
            ),
            table(
                1,
                "w2",
                &[2, 1, 3],
                "d3 d4 d5 d9 d10 d11",
                &["d[0..2,1..2,0..3] w2[0..2,0..1,0..3]"],
            ),
        ],
    }
}

fn sections() -> Layout {
    let sections = [(4, 2), (3, 1), (2, 2)].map(|(rows, units)| Section { rows, units }).to_vec();
    Layout {
        name: "sections of 2 heads, 1 group and 2 heads on 2 ranks",
        tp: 2,
        rules: vec![rule("p", &[9, 1], "in", Sharding::Sections { sections })],
        aliases: &[],
        tables: vec![
            table(
                0,
                "in",
                &[6, 1],
                "p0 p1 p4 p5 p6 p7",
                &["p[0..2,0..1] in[0..2,0..1]", "p[4..8,0..1] in[2..6,0..1]"],
            ),
            table(
                1,
                "in",
                &[6, 1],
                "p2 p3 p4 p5 p6 p8",
                &[
                    "p[2..4,0..1] in[0..2,0..1]",
                    "p[4..7,0..1] in[2..5,0..1]",
                    "p[8..9,0..1] in[5..6,0..1]",
                ],
            ),
        ],
    }
}

fn encoder(heads: u64) -> Sharding {
    Sharding::Encoder { heads, cut: Box::new(Sharding::Row) }
}

fn encoder_that_the_ranks_divide() -> Layout {
    Layout {
        name: "the row [2, 4] of an encoder of 4 heads on 2 ranks",
        tp: 2,
        rules: vec![rule("r", &[2, 4], "out", encoder(4))],
        aliases: &[],
        tables: vec![
            table(0, "out", &[2, 2], "r0 r1 r4 r5", &["r[0..2,0..2] out[0..2,0..2]"]),
            table(1, "out", &[2, 2], "r2 r3 r6 r7", &["r[0..2,2..4] out[0..2,0..2]"]),
        ],
    }
}

fn encoder_that_the_ranks_do_not_divide() -> Layout {
    let whole = |rank: u32| {
        table(rank, "out", &[2, 4], "r0 r1 r2 r3 r4 r5 r6 r7", &["r[0..2,0..4] out[0..2,0..4]"])
    };
    Layout {
        name: "the row [2, 4] of an encoder of 3 heads on 2 ranks",
        tp: 2,
        rules: vec![rule("r", &[2, 4], "out", encoder(3))],
        aliases: &[],
        tables: vec![whole(0), whole(1)],
    }
}

fn fused_experts_on_one_rank() -> Layout {
    Layout {
        name: "2 fused experts, gate and up in one move, on 1 rank",
        tp: 1,
        rules: vec![rule("f", &[2, 4, 2], "w13", Sharding::FusedExpertsGateUp)],
        aliases: &[],
        tables: vec![table(
            0,
            "w13",
            &[2, 4, 2],
            "f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12 f13 f14 f15",
            &["f[0..2,0..4,0..2] w13[0..2,0..4,0..2]"],
        )],
    }
}
