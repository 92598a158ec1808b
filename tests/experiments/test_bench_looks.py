import numba

from experiments.bench_looks import LooksConfig, main


def test_a_line_for_groups_and_one_for_parts(capsys):
    threads = numba.get_num_threads()
    main(LooksConfig(("ptb:test:0",), ("2xv100",), seconds=0.01))
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert numba.get_num_threads() == threads
    groups, parts = lines[2:]
    assert groups[3].endswith(" groups")
    assert parts[3].endswith(" parts")
    assert int(groups[3].split()[0]) < int(parts[3].split()[0].replace(",", ""))
    for line in (groups, parts):
        simulation, observation, network = map(float, line[4:7])
        assert observation > simulation > 0 < network
        assert float(line[9]) > 1
