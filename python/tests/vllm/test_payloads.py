"""What a sender at fault delivers to a llama: each is found, by the name of what went wrong.

Every run promises the whole of B and delivers something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vllm.conftest import Pairs, Proof, Prove

ATTENTION = "model.layers.0.self_attn"
Q, K = f"{ATTENTION}.q_proj.weight", f"{ATTENTION}.k_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
STRANGER = f"{ATTENTION}.zz.weight"


def delivered(prove: Prove, *payloads: str) -> Proof:
    words = [word for payload in payloads for word in ("--payload", payload)]
    return prove("llama", "--lane", "differential", "--require", "2,3,4", *words)


def test_the_other_order_is_no_fault(prove: Prove) -> None:
    proof = delivered(prove, "reversed")
    assert proof.summary == []
    assert proof.code == 0
    assert all(proof.category(number)["status"] == "pass" for number in (2, 3, 4))


def test_a_payload_that_was_cut_off(prove: Prove, pair: Pairs) -> None:
    proof = delivered(prove, "cut:10")
    assert proof.code == 1
    # Nothing else: not the layers that wait for it, nor what shares a slot with it.
    assert proof.objects() == pair("llama").sources()[10:], proof.summary
    assert proof.objects("source-missing") == proof.objects()


def test_an_empty_payload(prove: Prove, pair: Pairs) -> None:
    proof = delivered(prove, "cut:0")
    assert proof.code == 1
    assert proof.objects("source-missing") == pair("llama").sources()
    assert proof.objects("label-without-effect") == ["generation 2"], proof.summary
    assert proof.verdict["transition"]["status"] == "fail"


def test_a_second_copy_of_the_old_bytes(prove: Prove) -> None:
    proof = delivered(prove, f"stale-copy:{NORM}")
    assert proof.code == 1
    assert [one[:2] for one in proof.summary] == [("application-duplicate", NORM)]
    shown = proof.events("application-duplicate", NORM)
    assert "it still holds the bytes of the generation before" in shown


def test_a_second_copy_for_a_layer_that_is_finished(
    prove: Prove, packs_linear_layers: bool
) -> None:
    # vLLM has packed the layer by then, and its parameter is empty: it raises, and says no name.
    proof = delivered(prove, f"stale-copy:{DOWN}")
    assert proof.code == 1
    if not packs_linear_layers:
        assert [one[:2] for one in proof.summary] == [("application-duplicate", DOWN)]
        return
    # It goes on serving with layers on the meta device, and the next request ends it (N.05).
    found = [one[:2] for one in proof.summary]
    assert found == [("step-refused", "finalize"), ("engine-died", "serve")]
    assert "[160, 272]" in proof.events("step-refused", "finalize")
    assert "meta" in proof.events("engine-died", "serve")


def test_a_tensor_that_is_left_out(prove: Prove) -> None:
    proof = delivered(prove, f"without:{Q}")
    assert proof.code == 1
    assert [one[:2] for one in proof.summary] == [("source-missing", Q)]
    # The outputs after this update show under the same finding.
    assert "largest difference from a cold load" in proof.events("source-missing", Q)


def test_a_tensor_twice_in_the_place_of_another(prove: Prove) -> None:
    proof = delivered(prove, f"twice:{Q}", f"without:{K}")
    assert proof.code == 1
    assert [one[:2] for one in proof.summary] == [("source-missing", K)]
    # vLLM counts elements, so the second `q_proj` stands for the one that is missing.
    assert f"`{Q}` [0..128, 0..160] -> " in proof.events("source-missing", K)


def test_a_name_that_belongs_to_nothing(prove: Prove) -> None:
    proof = delivered(prove, f"extra:{STRANGER}")
    assert proof.code == 1
    assert proof.objects("source-unexpected") == [STRANGER]
    # As after any update that vLLM refuses half way (N.05).
    assert [one[:2] for one in proof.summary if one[1] != STRANGER] == [("engine-died", "serve")]
    assert "meta" in proof.events("engine-died", "serve")
    assert "There is no module or parameter named" in proof.events("source-unexpected", STRANGER)
