"""The kernel of the simulation: what production code runs on in a simulated world.

A world is made of a seed. `world.py` holds its event loop (`loop.py`), its trace (`trace.py`) and its processes
(`process.py`); `log/` is its event log, `network/` carries the calls between its processes, `disk.py` has their files,
`hosts.py` runs the service's roles in them, and `faults.py` breaks all of these. The same seed gives the same trace:

    async def scenario(world: World) -> None:
        broker = Broker(TOPICS, partitions=4, behaviour=Behaviour(world.random("log"), typical_s=0.001))
        writer = world.process("writer")
        await writer.start(SimulatedLog(broker).append([new_record]))

    World(seed=7, directory=tmp_path).run(scenario)

Code that runs in no simulated process, such as `scenario` itself, belongs to the world: it survives every fault.
`running.py` runs many worlds, each in a child process, so that none leaves anything behind.
"""
