// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/pipeline/simulate_order.h"

namespace lockstep {
namespace {

// Independent of the locale.
std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 6);
  return {text.data(), end.ptr};
}

std::string tenths(double value) { return number_text(std::round(value * 10) / 10); }

// The shortest duration above 0, or 1.
double unit_of(const SimulatedPipeline& simulated) {
  double unit = std::numeric_limits<double>::infinity();
  for (const auto& actions : simulated.actions)
    for (const auto& [action, begin, end] : actions)
      if (end > begin) unit = std::min(unit, end - begin);
  return std::isfinite(unit) ? unit : 1;
}

// From 0, in steps of 1, 2 or 5 times a power of ten; at most `most` ticks.
std::vector<double> ticks_of(double time, double most) {
  if (!(time > 0)) return {0};
  const double least = time / std::max(most, 1.);
  double step = std::pow(10., std::floor(std::log10(least)));
  for (const double factor : {2., 2.5, 2.})
    if (step < least) step *= factor;
  std::vector<double> ticks;
  for (int i = 0; i * step <= time * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

// By rank, in increasing order.
std::vector<std::vector<int>> stages_by_rank(const SimulatedPipeline& simulated) {
  std::vector<std::vector<int>> stages;
  for (const auto& actions : simulated.actions) {
    std::set<int> of_rank;
    for (const auto& timed : actions) of_rank.insert(timed.action.stage);
    stages.emplace_back(of_rank.begin(), of_rank.end());
  }
  return stages;
}

bool has_several(const std::vector<std::vector<int>>& stages) {
  return std::any_of(stages.begin(), stages.end(),
                     [](const std::vector<int>& of_rank) { return of_rank.size() > 1; });
}

// From most to least detailed.
enum class TextLabel { whole, without_stage, kind };

std::string label_of(const PipelineAction& action, TextLabel label) {
  std::string whole = to_string(action);
  const auto kind = whole.find(static_cast<char>(action.kind));
  if (label == TextLabel::whole) return whole;
  return label == TextLabel::without_stage ? whole.substr(kind) : whole.substr(kind, 1);
}

std::size_t widest_label(const SimulatedPipeline& simulated, TextLabel label) {
  std::size_t widest = 1;
  for (const auto& actions : simulated.actions)
    for (const auto& timed : actions)
      widest = std::max(widest, label_of(timed.action, label).size());
  return widest;
}

struct TextScale {
  TextLabel label = TextLabel::kind;
  double columns_per_time = 0;
  bool has_gaps = false;  // After each action.
};

TextScale text_scale(const SimulatedPipeline& simulated, std::size_t room) {
  const double unit = unit_of(simulated);
  const double most = simulated.time > 0
                          ? static_cast<double>(room) * unit / simulated.time  // Columns per unit.
                          : 0;
  for (const TextLabel label : {TextLabel::whole, TextLabel::without_stage}) {
    if (label == TextLabel::whole && !has_several(stages_by_rank(simulated))) continue;
    const auto width = static_cast<double>(widest_label(simulated, label));
    if (width + 1 <= most) return {label, (width + 1) / unit, true};
    // Adjacent numbers need gaps.
    if (width <= most && label == TextLabel::without_stage) return {label, width / unit, false};
  }
  return {TextLabel::kind, (most >= 1 ? std::floor(most) : most) / unit, false};
}

void put(std::string& line, std::size_t column, std::string_view text) {
  line.replace(column, text.size(), text);
}

std::string text_cell(const PipelineAction& action, std::size_t width, const TextScale& scale) {
  std::string cell(width, '-');
  std::string label = label_of(action, scale.label);
  if (label.size() > width) label = label_of(action, TextLabel::kind);
  put(cell, 0, label);
  if (scale.has_gaps && label.size() < width) cell.back() = ' ';
  return cell;
}

std::string text_axis(double time, const TextScale& scale, std::size_t room) {
  std::string line(room, ' ');
  for (const double tick : ticks_of(time, static_cast<double>(room) / 10)) {
    const auto column = static_cast<std::size_t>(std::lround(tick * scale.columns_per_time));
    const std::string text = number_text(tick);
    if (column + text.size() <= room) put(line, column, text);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

struct Colour {
  double red;
  double green;
  double blue;

  std::string text() const {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string result = "#";
    for (const double part : {red, green, blue}) {
      const auto value = static_cast<std::size_t>(std::lround(part));
      result += digits[value / 16];
      result += digits[value % 16];
    }
    return result;
  }
  Colour lighter(double share) const {
    const auto mixed = [&](double part) { return part + (255 - part) * share; };
    return {mixed(red), mixed(green), mixed(blue)};
  }
  bool is_dark() const { return 0.299 * red + 0.587 * green + 0.114 * blue < 125; }
};

struct KindLook {
  PipelineActionKind kind;
  Colour colour;
  std::string_view name;
};

// For colour-blind readers: Okabe and Ito, "Color Universal Design".
constexpr std::array kind_looks{
    KindLook{PipelineActionKind::forward, {0, 114, 178}, "forward"},
    KindLook{PipelineActionKind::backward, {230, 159, 0}, "backward"},
    KindLook{PipelineActionKind::backward_input, {0, 158, 115}, "input's gradient"},
    KindLook{PipelineActionKind::backward_weight, {204, 121, 167}, "weights' gradient"},
};
constexpr std::string_view idle_colour = "#e4e4e4";

// In pixels.
constexpr double left_edge = 58;
constexpr double top_edge = 40;
constexpr double row_height = 26;
constexpr double row_step = 32;
constexpr double digit_width = 6.5;

class SvgPicture {
 public:
  explicit SvgPicture(const SimulatedPipeline& simulated)
      : simulated_(simulated), stages_(stages_by_rank(simulated)) {
    constexpr double widest = 2400;
    if (simulated.time > 0) scale_ = std::min(22 / unit_of(simulated), widest / simulated.time);
    for (const auto& actions : simulated.actions)
      for (const auto& timed : actions) kinds_.insert(timed.action.kind);
  }

  std::string draw() {
    legend();
    for (std::size_t rank = 0; rank < stages_.size(); ++rank) row(rank);
    axis();
    const std::string size = tenths(std::max(width_, left_edge + time_width() + 24)) + ' ';
    const std::string height = tenths(bottom() + 36);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size + height +
           "\" width=\"" + size.substr(0, size.size() - 1) + "\" height=\"" + height +
           "\" role=\"img\">\n<title>A pipeline's order: what each rank does when</title>\n" +
           style() + "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" + body_ + "</svg>\n";
  }

 private:
  double time_width() const { return simulated_.time * scale_; }
  double bottom() const { return top_edge + row_step * static_cast<double>(stages_.size()); }

  // A CSS class per kind and stage: a rank's later stages are lighter.
  std::string style() const {
    std::size_t most = 1;
    for (const auto& stages : stages_) most = std::max(most, stages.size());
    std::string text = "<style>text{font:11px sans-serif;fill:#333}g text{text-anchor:middle}\n";
    for (const KindLook& look : kind_looks) {
      if (!kinds_.contains(look.kind)) continue;
      for (std::size_t place = 0; place < most; ++place) {
        const double share = 0.6 * static_cast<double>(place) / static_cast<double>(most);
        const Colour colour = look.colour.lighter(share);
        std::string name = ".";
        name += class_of(look.kind, place);
        text += name + " rect{fill:" + colour.text() + "}" + name +
                " text{fill:" + (colour.is_dark() ? "#fff" : "#000") + "}\n";
      }
    }
    return text + "</style>\n";
  }

  static std::string class_of(PipelineActionKind kind, std::size_t place) {
    std::string name(1, static_cast<char>(kind));
    name += std::to_string(place);
    return name;
  }

  void legend() {
    double x = left_edge;
    const auto entry = [&](const std::string& swatch, const std::string& name) {
      body_ += swatch;
      text_at(x + 19, 22, name);
      x += 19 + digit_width * static_cast<double>(name.size()) + 14;
    };
    for (const KindLook& look : kind_looks)
      if (kinds_.contains(look.kind))
        entry("<g class=\"" + class_of(look.kind, 0) + "\">" + rect(x, 11, 14, 14) + "</g>\n",
              std::string(look.name));
    entry(rect(x, 11, 14, 14, idle_colour) + "\n",
          "idle: " + tenths(100 * simulated_.bubble) + " %");
    if (has_several(stages_)) {
      const std::string note = "lighter: later stages of the rank";
      text_at(x, 22, note);
      x += digit_width * static_cast<double>(note.size());
    }
    width_ = x;
  }

  void row(std::size_t rank) {
    const double y = top_edge + row_step * static_cast<double>(rank);
    text_at(8, y + 17, "rank " + std::to_string(rank));
    body_ += rect(left_edge, y, time_width(), row_height, idle_colour) + "\n";
    for (const auto& [action, begin, end] : simulated_.actions[rank]) {
      const auto& stages = stages_[rank];
      const auto place = static_cast<std::size_t>(
          std::find(stages.begin(), stages.end(), action.stage) - stages.begin());
      const double x = left_edge + begin * scale_;
      const double width = (end - begin) * scale_;
      const std::string label = std::to_string(action.microbatch);
      body_ += "<g class=\"" + class_of(action.kind, place) + "\"><title>" + to_string(action) +
               ", " + number_text(begin) + " to " + number_text(end) + "</title>" +
               rect(x, y, std::max(width - 1, width / 2), row_height);
      if (digit_width * static_cast<double>(label.size()) + 2 <= width)
        text_at(x + (width - 1) / 2, y + 17, label);
      body_ += "</g>\n";
    }
  }

  void axis() {
    const double y = bottom() + 4;
    for (const double tick : ticks_of(simulated_.time, std::max(time_width() / 60, 2.))) {
      const double x = left_edge + tick * scale_;
      body_ += rect(x, y, 1, 5, "#888");
      body_ += "<g>";
      text_at(x, y + 18, number_text(tick));
      body_ += "</g>\n";
    }
    text_at(8, y + 18, "time");
  }

  static std::string rect(double x, double y, double width, double height,
                          std::string_view fill = {}) {
    std::string text = "<rect x=\"" + tenths(x) + "\" y=\"" + tenths(y) + "\" width=\"" +
                       tenths(width) + "\" height=\"" + tenths(height) + "\"";
    if (!fill.empty()) text += " fill=\"" + std::string(fill) + "\"";
    return text + "/>";
  }

  // `text` contains no special characters of XML.
  void text_at(double x, double y, const std::string& text) {
    body_ += "<text x=\"" + tenths(x) + "\" y=\"" + tenths(y) + "\">" + text + "</text>";
  }

  const SimulatedPipeline& simulated_;
  std::vector<std::vector<int>> stages_;
  std::set<PipelineActionKind> kinds_;
  double scale_ = 0;  // Pixels per unit of time.
  double width_ = 0;
  std::string body_;
};

}  // namespace

std::string draw_text(const SimulatedPipeline& simulated, int columns) {
  constexpr std::size_t least_room = 10;
  const std::size_t ranks = simulated.actions.size();
  const std::size_t left = std::to_string(std::max<std::size_t>(ranks, 1) - 1).size() + 6;
  const std::size_t room =
      std::max(static_cast<std::size_t>(std::max(columns, 0)), left + least_room) - left;
  const TextScale scale = text_scale(simulated, room);
  const auto column_of = [&](double time) {
    return std::min(room, static_cast<std::size_t>(std::lround(time * scale.columns_per_time)));
  };
  std::string text;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string name = "rank " + std::to_string(rank);
    name.resize(left, ' ');
    std::string line(column_of(simulated.time), '.');
    for (const auto& [action, begin, end] : simulated.actions[rank])
      if (const std::size_t width = column_of(end) - column_of(begin); width > 0)
        put(line, column_of(begin), text_cell(action, width, scale));
    line.insert(0, name);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  std::string name = "time";
  name.resize(left, ' ');
  return text + name + text_axis(simulated.time, scale, room) + '\n';
}

std::string draw_svg(const SimulatedPipeline& simulated) { return SvgPicture(simulated).draw(); }

}  // namespace lockstep
