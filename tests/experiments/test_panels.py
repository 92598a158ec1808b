from experiments.panels import panel_figure


def test_points_may_be_joined_instead_of_steps() -> None:
    figure = panel_figure({"a": {"p": [(300.0, 0.9), (1000.0, 0.5)]}}, "x", "y", "title", log=True, steps=False)
    (axes,) = figure.axes
    assert axes.lines[0].get_drawstyle() == "default"
    assert axes.lines[0].get_marker() == "o"
    assert axes.get_xticks().tolist() == [300.0, 1000.0]
    figure.draw_without_rendering()
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
