"""Who gets slots, ports and a turn: demands, nodes, queues, placement."""
