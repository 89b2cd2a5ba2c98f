"""The greeting: both ends prove a key, and no part of it serves for another."""

from __future__ import annotations

import secrets

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.wire.handshake import (
    ANSWER_BYTES,
    HELLO,
    HELLO_BYTES,
    Callee,
    Caller,
    NoProof,
    worker_secret,
)

SECRET = secrets.token_bytes(32)


@pytest.mark.parametrize("is_worker", [True, False])
def test_both_prove_it_and_a_worker_is_no_commander(is_worker: bool) -> None:
    caller = Caller(worker_secret(SECRET) if is_worker else SECRET)
    callee = Callee(SECRET)
    assert len(caller.hello) == HELLO_BYTES
    answer = callee.answer(caller.hello)
    assert len(answer) == ANSWER_BYTES
    callee.check(caller.prove(answer))
    assert callee.is_commander == (not is_worker)


def test_nonces_are_fresh() -> None:
    assert Caller(SECRET).hello != Caller(SECRET).hello
    hello = Caller(SECRET).hello
    assert Callee(SECRET).answer(hello) != Callee(SECRET).answer(hello)


def test_a_workers_key_does_not_tell_the_secret() -> None:
    key = worker_secret(SECRET)
    assert len(key) == len(SECRET)
    assert key != SECRET
    with pytest.raises(NoProof):
        Callee(worker_secret(key)).answer(Caller(SECRET).hello)


def test_an_answer_reflected_is_no_proof() -> None:
    callee = Callee(SECRET)
    answer = callee.answer(Caller(SECRET).hello)
    for part in (answer[:32], answer[32:]):
        with pytest.raises(NoProof):
            callee.check(part)


def test_a_hello_reflected_is_no_answer() -> None:
    caller = Caller(SECRET)
    with pytest.raises(NoProof, match="server does not know"):
        caller.prove(caller.hello[len(HELLO) :])


def test_no_proof_before_the_answer() -> None:
    with pytest.raises(NoProof):
        Callee(SECRET).check(b"")


@given(st.binary(max_size=2 * HELLO_BYTES))
def test_other_bytes_are_no_hello(data: bytes) -> None:
    with pytest.raises(NoProof):
        Callee(SECRET).answer(data)


@given(st.integers(0, HELLO_BYTES - 1), st.integers(1, 255))
def test_a_hello_with_one_byte_changed_is_none(place: int, change: int) -> None:
    hello = bytearray(Caller(SECRET).hello)
    hello[place] ^= change
    with pytest.raises(NoProof):
        Callee(SECRET).answer(bytes(hello))


@given(st.integers(0, ANSWER_BYTES - 1), st.integers(1, 255))
def test_an_answer_with_one_byte_changed_is_none(place: int, change: int) -> None:
    caller = Caller(SECRET)
    answer = bytearray(Callee(SECRET).answer(caller.hello))
    answer[place] ^= change
    with pytest.raises(NoProof):
        caller.prove(bytes(answer))
