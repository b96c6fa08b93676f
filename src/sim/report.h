// Report: the results of a simulation: rule violations, and marks of what was reached.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace ae::sim {

struct Violation {
  std::string rule;  // a checker's name: its letter in the catalogue and a sentence
  std::string job;   // "" = the whole world
  std::string what;
};

// `liveness`: nothing wrong happened, but something required never happened.
enum class ViolationKind { correctness, liveness };

struct Report {
  std::vector<Violation> violations;
  bool stuck = false;  // one of them is a liveness violation
  bool wrong = false;  // one of them is a correctness violation
  std::map<std::string, std::uint64_t, std::less<>> marks;
  std::uint64_t jobs = 0, events = 0;

  void violate(std::string_view rule, const JobId& job, std::string what,
               ViolationKind kind = ViolationKind::correctness) {
    (kind == ViolationKind::liveness ? stuck : wrong) = true;
    if (violations.size() < 64)
      violations.push_back({std::string(rule), job.text, std::move(what)});
  }
  void mark(std::string_view name) {
    if (auto it = marks.find(name); it != marks.end()) {
      it->second++;
    } else {
      marks.emplace(name, 1);
    }
  }
};

}  // namespace ae::sim
