from placeto.evaluation.figures import curve_figure, panel_figure


def test_curves_against_simulations_and_seconds() -> None:
    simulations = {"etf": [(1.0, 0.9)], "anneal": [(1.0, 1.0), (10.0, 0.8)]}
    seconds = {"etf": [(0.01, 0.9)], "anneal": [(0.02, 1.0), (0.5, 0.8)]}
    figure = curve_figure(simulations, seconds, "title")
    assert [axes.get_xlabel() for axes in figure.axes] == ["simulations", "seconds"]
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    best, dot, beyond = figure.axes[0].lines[:3]
    assert (best.get_xdata().tolist(), best.get_ydata().tolist()) == ([1.0, 10.0], [1.0, 0.8])
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (10.0, 0.8)
    assert list(beyond.get_xdata()) == [10.0, 10.0]
    short = figure.axes[1].lines[5]  # etf goes on where anneal is still at work
    assert (list(short.get_xdata()), list(short.get_ydata())) == ([0.01, 0.5], [0.9, 0.9])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["anneal", "etf"]  # the best first


def test_names_are_drawn_as_they_are_written() -> None:
    for name in ("$\\frac{$", "a$b$", "_hidden"):
        points = {name: [(1.0, 0.9), (10.0, 0.8)]}
        figures = curve_figure(points, points, name), panel_figure({name: points}, name, name, name)
        for figure in figures:
            figure.canvas.draw()
            texts = [*figure.legends[0].get_texts(), figure._suptitle]  # type: ignore[attr-defined]
            assert [text._preprocess_math(text.get_text()) for text in texts] == [(name, False)] * 2


def test_points_may_be_joined_instead_of_steps() -> None:
    figure = panel_figure({"a": {"p": [(300.0, 0.9), (1000.0, 0.5)]}}, "x", "y", "title", log=True, steps=False)
    (axes,) = figure.axes
    assert axes.lines[0].get_drawstyle() == "default"
    assert axes.lines[0].get_marker() == "o"
    assert axes.get_xticks().tolist() == [300.0, 1000.0]
    figure.canvas.draw()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["300", "1000"]


def test_a_label_has_one_colour_in_all_panels() -> None:
    panels = {"a": {"p": [(1.0, 0.9), (10.0, 0.5)]}, "b": {"q": [(1.0, 0.8)], "p": [(2.0, 0.7)]}, "c": {}, "d": {}}
    figure = panel_figure(panels, "placements", "makespan", "title", log=True, levels={"b": {"bound": 0.4}})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b", "c", "d"]
    assert figure.axes[0].get_position().x0 == figure.axes[3].get_position().x0, "the second row"
    (first,), (q, p, bound) = figure.axes[0].lines, figure.axes[1].lines
    assert (first.get_xdata().tolist(), first.get_ydata().tolist()) == ([1.0, 10.0], [0.9, 0.5])
    assert first.get_color() == p.get_color() != q.get_color()
    assert first.get_drawstyle() == "steps-post"
    assert set(bound.get_ydata()) == {0.4}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["p", "q", "bound"]
