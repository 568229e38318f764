// SPDX-License-Identifier: Apache-2.0
#include "tools/top/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep::tools {
namespace {

constexpr std::string_view enter_screen = "\033[?1049h\033[?25l";
constexpr std::string_view leave_screen = "\033[?25h\033[?1049l";
constexpr std::array<int, 6> signals{SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH};

bool write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

winsize size() {
  winsize found{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) != 0) found = {};
  return found;
}

// Signals arrive here after the first use.
int signal_descriptor() {
  static const FileDescriptor descriptor = [] {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : signals) ::sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    FileDescriptor made(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!made) throw_errno("signalfd");
    return made;
  }();
  return descriptor.get();
}

}  // namespace

bool Terminal::is_there() { return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1; }

Terminal::Terminal() {
  signal_descriptor();
  if (::tcgetattr(STDIN_FILENO, &before_) != 0) throw_errno("reading the terminal's settings");
  enter();
}

Terminal::~Terminal() { leave(); }

void Terminal::enter() const {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  if (::tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) throw_errno("setting the terminal");
  write_all(enter_screen);
}

void Terminal::leave() const {
  write_all(leave_screen);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

int Terminal::columns() const {
  constexpr int usual = 80;
  return size().ws_col > 0 ? size().ws_col : usual;
}

int Terminal::rows() const {
  constexpr int usual = 24;
  return size().ws_row > 0 ? size().ws_row : usual;
}

// Overwrites lines: clearing the terminal first would flicker.
bool Terminal::show(const std::string& text) const {
  std::string out = "\033[H";
  for (const char character : text) {
    if (character == '\n')
      out += "\033[K\r\n";
    else
      out += character;
  }
  if (out.ends_with("\r\n"))
    out.resize(out.size() - 2);  // The last line may be the terminal's
                                 // last.
  return write_all(out + "\033[J");
}

std::optional<char> Terminal::key(std::chrono::milliseconds limit) const {
  std::array<pollfd, 2> entries{{{STDIN_FILENO, POLLIN, 0}, {signal_descriptor(), POLLIN, 0}}};
  if (::poll(entries.data(), entries.size(), static_cast<int>(limit.count())) <= 0)
    return std::nullopt;
  if (signalfd_siginfo signal{};
      ::read(signal_descriptor(), &signal, sizeof signal) == sizeof signal) {
    if (signal.ssi_signo == SIGTSTP) {
      leave();
      ::raise(SIGSTOP);
      enter();
    }
    return signal.ssi_signo == SIGWINCH || signal.ssi_signo == SIGTSTP ? '\0' : 'q';
  }
  char key = 'q';
  return ::read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';
}

}  // namespace lockstep::tools
