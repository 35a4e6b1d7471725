// Threads, ISAs and a description of the machine. Python layer.
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
#include "quire/version.h"
#include "register.h"

namespace quire::python {
namespace {

nb::dict info() {
  const CpuInfo cpu = cpu_info();
  const IsaChoice choice = isa_choice();
  nb::list isas;
  for (const Isa isa : available_isas()) isas.append(isa_name(isa));
  nb::dict dict;
  dict["version"] = version();
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
  module.attr("__version__") = version();
  module.def("set_num_threads", &set_num_threads, nb::arg("n"),
             R"doc(How many threads calls that start from now on use, the calling one included.

>>> import quire
>>> before = quire.get_num_threads()
>>> quire.set_num_threads(1)
>>> quire.get_num_threads()
1
>>> quire.set_num_threads(before))doc");
  module.def("get_num_threads", &get_num_threads,
             R"doc(QUIRE_NUM_THREADS or the number of CPUs this process may use, until it is set.

>>> import quire
>>> quire.get_num_threads() >= 1
True)doc");
  module.def("info", &info, R"doc(The CPU, the ISA chosen and why, threads, caches.

>>> import quire
>>> info = quire.info()
>>> info["isa"] in info["available_isas"]
True)doc");
  module.def(
      "force_isa", [](const std::optional<std::string>& name) { force_isa(name); },
      nb::arg("name").none(),
      R"doc(Forces an ISA by name for the whole process; None goes back to QUIRE_ISA or the fastest.

>>> import quire
>>> quire.force_isa("scalar")
>>> quire.info()["isa"]
'scalar'
>>> quire.force_isa(None))doc");
}

}  // namespace quire::python
