"""The cases of `triton_attention_cases` in Triton's interpreter, in a process of its own."""

from triton_interpreter import needs_triton, run_cases


@needs_triton
def test_cases_pass_in_the_interpreter():
    run_cases("triton_attention_cases.py")
