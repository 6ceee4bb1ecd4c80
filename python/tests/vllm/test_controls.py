"""What is unusual and right: nothing is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vllm.conftest import Pairs, Proof, Prove, Tensors

DIFFERENTIAL = ("--lane", "differential", "--require", "2,3,4")


def with_head(tensors: Tensors) -> Tensors:
    """The tied head a second time, under its own name."""
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def test_the_same_checkpoint_again(prove: Prove, pair: Pairs) -> None:
    proof = prove(pair("llama").identity(), *DIFFERENTIAL)
    assert proof.summary == []
    # The checkpoint that the lane takes in between differs in every element, so that it is proven.
    assert proof.code == 0


def test_a_payload_in_a_wider_dtype(prove: Prove) -> None:
    proof = prove("llama", *DIFFERENTIAL, "--payload", "float32")
    assert proof.summary == []
    assert proof.code == 0, [proof.category(number) for number in (2, 3, 4)]


def test_a_tied_head_that_is_sent_twice(prove: Prove, pair: Pairs, tmp_path: Path) -> None:
    twice = pair("llama_tied").changed(tmp_path, with_head, with_head)
    # The head is loaded under its own name then, and packed again.
    proof = prove(twice, *DIFFERENTIAL)
    assert proof.summary == []
    assert proof.code == 0


@pytest.fixture(scope="module")
def plain(prove: Prove) -> Proof:
    return prove("llama", *DIFFERENTIAL)


def test_a_message_that_is_no_fault(plain: Proof) -> None:
    assert "RotaryEmbedding: Failed to load weights" in plain.log
    assert plain.summary == []


@pytest.mark.parametrize("twin", ["empty-rebound", "unread-moved"])
def test_tensors_that_lie_elsewhere_and_are_read_by_nothing(prove: Prove, twin: str) -> None:
    proof = prove("llama", *DIFFERENTIAL, fault=twin)
    assert proof.summary == []
    assert proof.code == 0


def test_what_depends_on_how_often_it_was_derived(prove: Prove, plain: Proof) -> None:
    proof = prove("llama", *DIFFERENTIAL, fault="derived-counts")
    assert proof.code == 1
    assert all(about.endswith(".constants") or "/constants" in about for about in proof.objects())
    assert proof.category(2)["status"] == "fail"
    assert plain.category(2)["status"] == "pass"
