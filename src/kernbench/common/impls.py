"""Impl names and the classes behind them, by name only: importing this loads none of them.

`builtin.x` names are looked up here; `package.module:Class` is imported as it stands, so a user's own package needs no
row. Classes are imported when first used.
"""

from __future__ import annotations

from importlib import import_module

from kernbench.common.errors import ComponentError

BUILTIN = {
    "builtin.forwarding": "kernbench.components.builtin.forwarding:ForwardingComponent",
    "builtin.switch": "kernbench.components.builtin.forwarding:ForwardingComponent",
    "builtin.noc": "kernbench.components.builtin.forwarding:ForwardingComponent",
    "builtin.ucie": "kernbench.components.builtin.forwarding:ForwardingComponent",
    "builtin.pcie_ep": "kernbench.components.builtin.pcie_ep:PcieEpComponent",
    "builtin.sip_port": "kernbench.components.builtin.sip_port:SipPortComponent",
    "builtin.io_cpu": "kernbench.components.builtin.io_cpu:IoCpuComponent",
    "builtin.m_cpu": "kernbench.components.builtin.m_cpu:MCpuComponent",
    "builtin.hbm_ctrl": "kernbench.components.builtin.hbm_ctrl:HbmCtrlComponent",
    "builtin.sram": "kernbench.components.builtin.sram:SramComponent",
    "builtin.pe_dma": "kernbench.components.builtin.pe_dma:PeDmaComponent",
    "builtin.pe_cpu": "kernbench.components.builtin.pe_cpu:PeCpuComponent",
    "builtin.pe_scheduler": "kernbench.components.builtin.pe_scheduler:PeSchedulerComponent",
    "builtin.pe_fetch_store": "kernbench.components.builtin.pe_fetch_store:PeFetchStoreComponent",
    "builtin.pe_gemm": "kernbench.components.builtin.pe_gemm:PeGemmComponent",
    "builtin.systolic": "kernbench.components.builtin.systolic:SystolicComponent",
    "builtin.unit_group": "kernbench.components.builtin.unit_group:UnitGroupComponent",
    "builtin.core_group": "kernbench.components.builtin.core_group:CoreGroupComponent",
    "builtin.pe_math": "kernbench.components.builtin.pe_math:PeMathComponent",
    "builtin.pe_tcm": "kernbench.components.builtin.pe_tcm:PeTcmComponent",
    "builtin.pe_mmu": "kernbench.components.builtin.pe_mmu:PeMmuComponent",
    "builtin.pe_ipcq": "kernbench.components.builtin.pe_ipcq:PeIpcqComponent",
}


def imported(impl: str) -> object:
    """What an impl name stands for; raises ComponentError when there is nothing of that name."""
    target = BUILTIN.get(impl, impl)
    module_name, colon, class_name = target.partition(":")
    if not colon or not module_name or not class_name:
        raise ComponentError(
            f"unknown component impl '{impl}'",
            hint=f"use one of {', '.join(BUILTIN)}, or 'package.module:Class' for your own",
        )
    try:
        return getattr(import_module(module_name), class_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ComponentError(
            f"component impl '{impl}' cannot be loaded: {type(error).__name__}: {error}",
            hint="check the spelling, and that the package is installed or on PYTHONPATH",
        ) from error
