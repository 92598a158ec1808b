from placeto.evaluation.figures import curve_figure


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
        figure = curve_figure(points, points, name)
        figure.draw_without_rendering()  # a formula would be an error
        assert len(figure.legends[0].get_texts()) == 1
