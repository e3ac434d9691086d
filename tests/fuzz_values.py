"""What the fuzzer (`tests.fuzz`) puts into machines and command lines."""

# Values that no key, or few, can take.
NASTY = [
    "-1", "0", "1", "3", "7", "16", "17", "1000000000", "1e9", "1e300", "-0.5", "0.0001", ".inf", "-.inf", ".nan",
    "null", "~", "yes", "no", "true", "''", "'x'", "[]", "{}", "[1, 2]", "{a: 1}", "!!python/object:os.system x",
    "*alias", "&a b", "0x10", "1_000", "2026-01-01", '"\\u0000"', "ä", "builtin.nothing", "os:system", "a.b:C", ":",
    "kernbench.components.base:Packet", "replicate", "ring_1d", "torus_2d", "mesh_2d_no_wrap", "N", "Q", "va",
    "one_to_one", "99999999999999999999999999",
]  # fmt: skip
KEYS = [
    "system.sips.count", "system.sips.topology", "system.sips.w", "sip.cube_mesh.w", "sip.cube_mesh.h",
    "cube.pe_layout.pe_per_corner", "cube.pe_layout.corners", "cube.ucie.n_connections",
    "cube.memory_map.hbm_channels_per_pe", "cube.memory_map.hbm_total_gb_per_cube", "cube.links.router_bw_gbs",
    "sip.io_chiplets", "sip.io_chiplets.0.side", "sip.io_chiplets[0].cube_ports", "system.flit_bytes",
    "cube.components.router.impl", "cube.components.hbm_ctrl.attrs.efficiency", "cube.geometry.cube_mm.w", "nonsense",
    "", "..", "system",
]  # fmt: skip

# Values that are fine on their own and may or may not go together.
PLAUSIBLE: dict[str, list[object]] = {
    "system.sips.count": [1, 1, 2, 3],
    "system.sips.topology": ["ring_1d", "ring_1d", "torus_2d", "mesh_2d_no_wrap"],
    "system.ns_per_mm": [0, 0.1, 3],
    "system.address_model": ["va", "pa", "la"],
    "sip.cube_mesh.w": [1, 2, 3],
    "sip.cube_mesh.h": [1, 2],
    "sip.links.cube_to_cube.bw_gbs": [0.5, 100, 1000],
    "sip.io_chiplets": [
        [{"id": "io0", "side": side}] for side in "NSEW"
    ] + [
        [{"id": "io7", "side": "S"}, {"id": "io1", "side": "S"}],
        [{"id": f"io{n}", "side": side} for n, side in enumerate("NESW")],
        [{"id": "io3", "side": "W", "cube_ports": [{"cube": {"xy": [0, 0]}, "distance_mm": 0}]}],
        [{"id": "io3", "side": "E", "cube_ports": [{"cube": {"xy": [1, 0]}, "phy": "Z"}, {"cube": {"xy": [1, 1]}}]}],
    ],
    "io_chiplet.n_connections": [1, 3, 8],
    "io_chiplet.links.pcie_ep_to_noc_bw_gbs": [1, 77.7],
    "cube.pe_layout.corners": [["NW"], ["SE", "NW"], ["NE", "SW", "SE"], ["SW", "NE", "NW", "SE"]],
    "cube.pe_layout.pe_per_corner": [1, 2, 3, 4],
    "cube.geometry.cube_mm.w": [6, 14, 30],
    "cube.geometry.margin_mm": [0.75, 1.5, 3],
    "cube.geometry.max_spacing_mm": [1, 3, 50],
    "cube.ucie.n_connections": [1, 2, 3, 5, 8],
    "cube.memory_map.hbm_mapping_mode": ["n_to_one", "one_to_one"],
    "cube.memory_map.hbm_channels_per_pe": [1, 2, 32],
    "cube.memory_map.hbm_pseudo_channels": [4, 16, 64],
    "cube.memory_map.hbm_total_gb_per_cube": [1, 7, 128],
    "cube.memory_map.sram_mb_per_cube": [0.01, 1, 32],
    "cube.components.hbm_ctrl.attrs.efficiency": [0.1, 0.37, 1],
    "cube.components.hbm_ctrl.attrs.switch_penalty_ns": [0, 12.5],
    "cube.components.router.attrs.overhead_ns": [0, 0.3, 40],
    "cube.components.ucie.impl": ["builtin.noc", "builtin.sram", "kernbench.components.base:TransitComponent"],
    "cube.links.router_bw_gbs": [3, 77.7, 512],
    "cube.pe_template.components.pe_dma.attrs.outstanding": [1, 2, 64],
}  # fmt: skip
BENCHES = [
    "gemm-single-pe", "qkv-gemm", "layernorm", "matmul-composite", "va-offset-verify", "softmax", "7", "99",
    "nothing",
]  # fmt: skip
PARAMS = [
    "m", "k", "n", "rows", "cols", "seq", "d_model", "block_rows", "dtype", "seed", "variant", "nothing",
]  # fmt: skip
# No huge ones: they are real work, not wrong.
VALUES = [
    "-1", "0", "1", "3", "7", "16", "33", "f32", "bf16", "x", "", "1.5", "true",
]  # fmt: skip

SMALL = """\
system:
  sips: {count: 1}
sip:
  cube_mesh: {w: 2, h: 1}
cube:
  pe_layout: {corners: [NW, SE], pe_per_corner: 1}
"""
