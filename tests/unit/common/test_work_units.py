"""Units of work: what flops are counted from."""

from kernbench.common.work_units import BYTES, flops_of, macs_of, vector_ops_of


def test_a_multiply_accumulate_is_two_flops_a_vector_op_one_and_a_byte_none() -> None:
    assert flops_of(macs_of("f16"), 24) == 48
    assert flops_of(vector_ops_of("bf16"), 24) == 24
    assert flops_of(BYTES, 24) == 0
