"""The nodes of production in virtual time, under faults drawn from a seed, with a checker for every guarantee.

A run depends on its seed alone: nothing here reads a clock or the system's random numbers.

The simulator:

- `world`: virtual time, the event queue, the execution of effects, and the interface of observers
- `network`, `clocks`, `simulated_journal`: links, clocks and journals of nodes
- `processors`: turns that take time, cores that nodes share, socket buffers, and programs that compete for a core
- `faults`: faults as values, their scheduling, and an intruder
- `cluster_faults`, `cluster_fault_draws`, `simulated_store`: further faults of deployments, and of their store
- `recorder`, `datagram_summary`, `space_time_diagram`: traces as events, text and SVG

Worlds and their checkers:

- `cluster`: the nodes of a deployment that reforms and heals, or of a bare ring with a fixed formation
- `fault_schedule`, `ring_schedule`: what one seed draws for a deployment, and for a bare ring
- `cluster_run`: the schedule of one seed, built, run and checked
- `checkers`, `cluster_checkers`: one class for each guarantee, and what it observes of a cluster
- `fairness_checkers`, `operation_checkers`: the guarantees that need the truth, and those of operation
- `floor_run`: a cluster with a trading floor, its load and its guarantees
- `failover_run`: how long it takes to replace crashed members
- `overload`, `overload_run`, `overload_checkers`: more load than the processors of a ring or a cluster can carry
- `fair_entry`, `unequal_load`: which region wins simultaneous bids, and which source among busy and quiet ones
- `scale`: hierarchies of loops with up to 20,000 sites
- `exploration`, `exploration_starts`, `explored_deployment`, `explored_history`, `machine_states`: every order of steps
  of a small deployment up to a depth, its states as values, and their checkers
- `campaign`, `campaign_results`: many seeds on all cores; a file with which a campaign is continued
"""
