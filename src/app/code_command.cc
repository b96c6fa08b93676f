#include "app/code_command.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>

#include "json/json.h"

namespace ae::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAgentsFiles[] = {".yaml", ".yml", ".json"};
constexpr std::string_view kNodeFiles[] = {".ts", ".mts", ".cts", ".js", ".mjs", ".cjs"};
constexpr char kNodeSdk[] = "AETHERIS_SDK_TYPESCRIPT", kPythonSdk[] = "AETHERIS_SDK_PYTHON";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

bool has_extension(const std::string& path, std::span<const std::string_view> extensions) {
  return std::ranges::find(extensions, fs::path(path).extension().string()) != extensions.end();
}

bool is_executable(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

bool is_in_path(const std::string& program) {
  const std::string all = variable("PATH");
  for (std::size_t at = 0; at <= all.size();) {
    const std::size_t end = std::min(all.find(':', at), all.size());
    const std::string folder = all.substr(at, end - at);
    if (is_executable((folder.empty() ? "." : folder) + "/" + program)) return true;
    at = end + 1;
  }
  return false;
}

Status check_program(const std::string& path, const std::string& program, std::string_view how) {
  if (is_in_path(program)) return {};
  return fail(Code::usage, "{} needs the program {}, which is not in PATH: {}", path, program, how);
}

// The program `aetheris-worker` of the package in this folder; "" = there is none.
std::string worker_program(const fs::path& package) {
  std::ifstream file(package / "package.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto json = parse_json(text);
  if (!json || !json->is_object()) return {};
  const std::string relative((*json)["bin"].text("aetheris-worker"));
  std::error_code error;
  for (const fs::path& program : {package / relative, package / "src/worker_main.ts"}) {
    if (!relative.empty() && fs::is_regular_file(program, error)) return program.string();
  }
  return {};
}

// As Node resolves the package `aetheris` from a module in this folder.
std::string installed_worker_program(fs::path folder) {
  for (;; folder = folder.parent_path()) {
    const std::string program = worker_program(folder / "node_modules/aetheris");
    if (!program.empty() || folder == folder.parent_path()) return program;
  }
}

Result<CodeCommand> node_command(const std::string& path, const fs::path& folder) {
  AE_TRY(check_program(path, "node", "install Node.js 20 or later (22.18 for .ts files)"));
  CodeCommand command{.name = path, .file = path, .words = {"node"}};
  if (const std::string sdk = variable(kNodeSdk); !sdk.empty()) {
    command.words.push_back(worker_program(sdk));
    if (command.words.back().empty()) {
      return fail(Code::usage, "{} names {}, which is not the TypeScript SDK", kNodeSdk, sdk);
    }
  } else {
    command.words.push_back(installed_worker_program(folder));
    if (command.words.back().empty()) {
      return fail(
          Code::usage,
          "{} needs the package \"aetheris\", which is not installed for {}: install it there "
          "(docs/development.md), or set {} to the folder of the SDK",
          path, folder.string(), kNodeSdk);
    }
  }
  command.words.push_back(path);
  return command;
}

Result<CodeCommand> python_command(const std::string& path) {
  AE_TRY(check_program(path, "python3", "install Python 3.9 or later"));
  CodeCommand command{
      .name = path, .file = path, .words = {"python3", "-u", "-m", "aetheris", path}};
  if (const std::string sdk = variable(kPythonSdk); !sdk.empty()) {
    std::error_code error;
    if (!fs::is_regular_file(fs::path(sdk) / "aetheris/__main__.py", error)) {
      return fail(Code::usage, "{} names {}, which is not the Python SDK", kPythonSdk, sdk);
    }
    const std::string more = variable("PYTHONPATH");
    command.environment.emplace_back("PYTHONPATH", more.empty() ? sdk : sdk + ":" + more);
  }
  return command;
}

}  // namespace

bool is_agents_file(const std::string& path) { return has_extension(path, kAgentsFiles); }

bool has_code_extension(const std::string& path) {
  return has_extension(path, kNodeFiles) || path.ends_with(".py");
}

bool is_code_file(const std::string& path) {
  if (is_agents_file(path)) return false;
  return has_code_extension(path) || is_executable(path);
}

Result<CodeCommand> code_command(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return fail(Code::usage, "cannot read {}: {}", path, error.message());
  if (!fs::is_regular_file(real, error)) return fail(Code::usage, "{} is not a file", path);
  if (has_extension(path, kNodeFiles)) return node_command(path, real.parent_path());
  if (path.ends_with(".py")) return python_command(path);
  if (!is_executable(path)) {
    return fail(Code::usage,
                "{} is neither an agents file (.yaml .yml .json) nor code (.ts .mts .cts .js .mjs "
                ".cjs .py, or an executable file)",
                path);
  }
  return CodeCommand{.name = path, .file = path, .words = {real.string()}};
}

CodeCommand code_command_of(std::vector<std::string> words) {
  std::string name = words.front();
  return {.name = std::move(name), .file = {}, .words = std::move(words)};
}

Result<CodeCommand> debugged(CodeCommand command) {
  auto& words = command.words;
  if (has_extension(command.file, kNodeFiles)) {
    words.insert(words.begin() + 1, "--inspect-brk=127.0.0.1:0");
    return command;
  }
  if (command.file.ends_with(".py")) {
    *std::ranges::find(words, "aetheris") = "aetheris.debugger";
    return command;
  }
  return fail(Code::usage, "{} is not a file of Node or Python, which have a debugger",
              command.name);
}

std::string debugger_address(std::string_view line) {
  constexpr std::string_view kListens = "Debugger listening on ";
  return line.starts_with(kListens) ? std::string(line.substr(kListens.size())) : "";
}

std::string start_hint(const CodeCommand& command, std::string_view output) {
  if (command.file.ends_with(".py") && output.find("No module named aetheris") != output.npos) {
    return fmt::format(
        "{} needs the Python package \"aetheris\": run `pip install aetheris`, or set {} to the "
        "folder of the SDK",
        command.name, kPythonSdk);
  }
  return {};
}

}  // namespace ae::app
