"""Memoisation: a composite, a launch or a collective that was simulated before is replayed from its recording.

A composite is recorded for one PE, a launch for a cube or a SIP (a *region*), a collective for the SIPs of its
communicator together. It is one idea at three scopes, made of five parts:

    request ──> key ──> match ──hit──> replay ──────────────────────> one event at the end; then times,
                 │        │              ▲   │                        log rows, counters, values are copied
                 │        └─miss─> record┘   │ an interfering access
                 │      (private machine)    ▼
                 └─ not memoised        interrupt ──> rewind the clock to the begin, simulate up to now
                        │                              │
                        ▼                              ▼
                    simulation in full detail <────────┘

    part       what it does                                      composite                launch, collective
    ---------  ------------------------------------------------  -----------------------  -------------------------
    key        what must be equal for equal timing: shapes,      `sub_network.py`,        `regions.py`,
               channels of operands, relative place, TCM, rings  `tile_steps.py`          `launch_places.py`
    record     simulate on a private machine, with the same      `private_pe.py`,         `private_machine.py`,
               classes as the machine; keep what happened        `composite_recorder.py`, `launch_recorder.py`,
                                                                 `segments.py`,           `launch_recording.py`,
                                                                 `composite_recording.py` `recorded_contents.py`
    match      is this the same request? A composite: equal      `composite_memo.py`      `launch_recordings.py`,
               keys. A launch: also equal `tl` calls                                      `triton_emu/matching_tl.py`
    replay     reserve links and channels, wait for the end,     `composite_memo.py`      `replayed_launch.py`,
               copy times, rows, counters, values                                         `value_program.py`,
                                                                                          `late_credits.py`
    interrupt  an access from outside: the reservation ends,     `FabricEnvironment.rewind`, for all of them
               the clock is rewound, simulation goes on

`launch_memo.py` decides for each launch. `record_ahead.py` records launches in worker processes before the clock
reaches them, with `private_files.py` so that workers share no open file with the program.

Outside of this package, by part:

    key        `common/declared_state.py`: the timing state that a block declares; `components/builtin/pe_state.py`:
               that of a PE; `triton_emu/repeatable.py`: which kernels may be replayed; `triton_emu/outside_values.py`:
               what a kernel reads besides its arguments
    record     `triton_emu/recording_tl.py`: the calls of a kernel; `sim_engine/host_ahead.py`: whether the host's own
               code may be run ahead, so that workers know what to record
    match      `triton_emu/call_signatures.py`: in which calls are compared
    replay     `sim_engine/op_copies.py`: log rows that others copy

Programs of a Triton grid are recorded by themselves (`triton/recording.py`): what is saved there is the language layer,
and every program is still simulated.

Why it is exact: all that decides future timing is in the key or compared when it is matched; while a replay is under
way, its links, channels and PEs are reserved, so nothing else can have changed them; and a rewind runs the machine's
own code. No result depends on whether something was replayed (`kernbench run --check-fast`).
"""
