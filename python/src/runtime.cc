// Threads, ISAs and what machine this is. Python layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "quire/cpu_info.h"
#include "quire/draw.h"
#include "quire/executor.h"
#include "quire/isa.h"
#include "register.h"

namespace quire::python {
namespace {

nb::dict info() {
  const CpuInfo cpu = cpu_info();
  const IsaChoice choice = isa_choice();
  nb::list isas;
  for (const Isa isa : available_isas()) isas.append(isa_name(isa));
  nb::dict dict;
  dict["version"] = QUIRE_VERSION;
  dict["cpu"] = cpu.model;
  dict["features"] = cpu.features;
  dict["isa"] = isa_name(choice.isa);
  dict["isa_why"] = choice.why;
  dict["available_isas"] = isas;
  dict["threads"] = get_num_threads();
  dict["logical_cpus"] = cpu.logical_cpus;
  dict["cores"] = cpu.cores;
  dict["l1d_bytes"] = cpu.l1d_bytes;
  dict["l2_bytes"] = cpu.l2_bytes;
  dict["l3_bytes"] = cpu.l3_bytes;
  dict["has_png"] = has_png();
  return dict;
}

}  // namespace

void register_runtime(nb::module_& module) {
  module.attr("__version__") = QUIRE_VERSION;
  module.def("set_num_threads", &set_num_threads, nb::arg("n"),
             "How many threads calls that start from now on use, the calling one included.");
  module.def("get_num_threads", &get_num_threads,
             "QUIRE_NUM_THREADS or the number of CPUs this process may use, until it is set.");
  module.def("info", &info, "The CPU, the ISA chosen and why, threads, caches.");
  module.def(
      "force_isa", [](std::optional<std::string> name) { force_isa(name); }, nb::arg("name").none(),
      "Forces an ISA by name for the whole process; None goes back to QUIRE_ISA or the fastest.");
}

}  // namespace quire::python
