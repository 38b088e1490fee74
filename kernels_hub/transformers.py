"""Importing this makes `use_kernels=True` and `KernelConfig` of Hugging Face transformers work with kernels_hub.

    import kernels_hub.transformers
    from transformers import AutoModelForCausalLM, KernelConfig

    model = AutoModelForCausalLM.from_pretrained(path, use_kernels=True)
    model = AutoModelForCausalLM.from_pretrained(path, kernel_config=KernelConfig("compiled"))
    print(kernels_hub.report(model))

See `kernelization.transformers_adapter`. Import it before the models, so that the tags in their files are seen where
transformers finds no `kernels` of the version that it asks for.
"""

from kernels_hub.kernelization.transformers_adapter import install, uninstall

__all__ = ["install", "uninstall"]

install()
