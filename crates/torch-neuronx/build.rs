//! Compiles csrc and links it to the PyTorch of the Python interpreter the extension is built for.
//!
//! PyTorch's headers take seconds per file, so objects are kept between builds: a file is compiled again only when it,
//! a header of csrc, the compiler's flags or PyTorch's version changed.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The minor release whose C++ interface csrc is written for: vtables and struct layouts move with every minor.
const TORCH: &str = "2.15";

/// Prints the version of PyTorch and where its package and Python's headers are, without importing PyTorch.
const PROBE: &str = "
import importlib.util, pathlib, runpy, sysconfig
spec = importlib.util.find_spec('torch')
if spec is None:
    raise SystemExit('torch is not installed')
package = pathlib.Path(spec.origin).parent
print(runpy.run_path(str(package / 'version.py'))['__version__'])
print(package)
print(sysconfig.get_paths()['include'])
";

fn main() {
    for variable in ["PYO3_PYTHON", "VIRTUAL_ENV", "CXX", "CXXFLAGS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let csrc = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../csrc");
    println!("cargo:rerun-if-changed={}", csrc.display());

    let torch = Torch::find();
    let objects = compile(&csrc, &torch);
    link(&objects, &torch);
}

struct Torch {
    version: String,
    package: PathBuf,
    python_headers: PathBuf,
}

impl Torch {
    fn find() -> Torch {
        let python = interpreter();
        let output = Command::new(&python).args(["-c", PROBE]).output();
        let output = output.unwrap_or_else(|e| fail(&format!("cannot run {}: {e}", python.display())));
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            fail(&format!(
                "{} has no usable PyTorch: {}. Install torch {TORCH} into it, or name another interpreter in PYO3_PYTHON",
                python.display(),
                reason.trim()
            ));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines().map(str::to_owned);
        let mut next = || lines.next().unwrap_or_else(|| fail("the interpreter's answer about PyTorch is incomplete"));
        let (version, package, python_headers) = (next(), next(), next());
        if !version.starts_with(&format!("{TORCH}.")) {
            fail(&format!(
                "PyTorch {version} at {package} cannot be used: this release is written for {TORCH}.x, \
                 and PyTorch's C++ interface changes with every minor release"
            ));
        }
        // A change of PyTorch under the same path shows here.
        println!("cargo:rerun-if-changed={package}/version.py");
        Torch { version, package: package.into(), python_headers: python_headers.into() }
    }
}

/// The interpreter that PyO3 builds for: what maturin names, else that of the virtual environment, else `python3`.
fn interpreter() -> PathBuf {
    if let Some(python) = env::var_os("PYO3_PYTHON") {
        return python.into();
    }
    match env::var_os("VIRTUAL_ENV") {
        Some(environment) => PathBuf::from(environment).join("bin/python"),
        None => "python3".into(),
    }
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}

/// Compiles what changed, as many files at a time as cargo allows, and returns every object.
fn compile(csrc: &Path, torch: &Torch) -> Vec<PathBuf> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let include = torch.package.join("include");
    let mut build = cc::Build::new();
    build
        .cargo_metadata(false)
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .debug(false)
        .warnings(true)
        .extra_warnings(true)
        .pic(true);
    build.flag("-fvisibility=hidden").flag("-Wno-unused-parameter");
    // Messages name csrc/fallback.cpp, wherever that was when it was compiled.
    build.flag(format!("-fmacro-prefix-map={}=csrc", csrc.display()));
    build.include(csrc);
    // System headers: their warnings are PyTorch's own.
    for headers in [&include, &include.join("torch/csrc/api/include"), &include.join("kineto"), &torch.python_headers] {
        build.flag("-isystem").flag(headers);
    }
    let compiler = build.get_compiler();

    let (mut sources, mut headers) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(csrc).unwrap_or_else(|e| fail(&format!("cannot read {}: {e}", csrc.display()))) {
        let path = entry.unwrap_or_else(|e| fail(&format!("cannot read {}: {e}", csrc.display()))).path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("cpp") => sources.push(path),
            Some("h") => headers.push(path),
            _ => {}
        }
    }
    sources.sort();
    headers.sort();
    let mut common = DefaultHasher::new();
    (&torch.version, compiler.path(), compiler.args()).hash(&mut common);
    headers.iter().for_each(|path| read(path).hash(&mut common));

    let objects: Vec<PathBuf> =
        sources.iter().map(|s| out.join(s.file_name().expect("a file")).with_extension("o")).collect();
    let mut stale: Vec<(PathBuf, PathBuf, String)> = Vec::new();
    for (source, object) in sources.iter().zip(&objects) {
        let mut hash = common.clone();
        read(source).hash(&mut hash);
        let stamp = format!("{:016x}", hash.finish());
        let kept = fs::read_to_string(object.with_extension("stamp")).unwrap_or_default();
        if kept != stamp || !object.exists() {
            stale.push((source.clone(), object.clone(), stamp));
        }
    }

    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).min(stale.len());
    let (queue, failures) = (Mutex::new(stale), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some((source, object, stamp)) = queue.lock().expect("no panic holds it").pop() else { break };
                    let run = compiler.to_command().arg("-c").arg(&source).arg("-o").arg(&object).output();
                    match run {
                        Ok(run) if run.status.success() => {
                            warn(&String::from_utf8_lossy(&run.stderr));
                            fs::write(object.with_extension("stamp"), stamp).expect("OUT_DIR is writable");
                        }
                        Ok(run) => failures
                            .lock()
                            .expect("no panic holds it")
                            .push(String::from_utf8_lossy(&run.stderr).into_owned()),
                        Err(e) => {
                            failures.lock().expect("no panic holds it").push(format!("{:?}: {e}", compiler.path()))
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic holds it");
    if !failures.is_empty() {
        fail(&format!("csrc does not compile\n{}", failures.join("\n")));
    }
    objects
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| fail(&format!("cannot read {}: {e}", path.display())))
}

fn warn(text: &str) {
    text.lines().for_each(|line| println!("cargo:warning={line}"));
}

/// The whole archive, because nothing refers to an object that only registers itself. No run path: Python imports
/// PyTorch first, and the loader then finds its libraries by name.
fn link(objects: &[PathBuf], torch: &Torch) {
    let mut archive = cc::Build::new();
    archive.cargo_metadata(false).objects(objects);
    archive.compile("neuron_glue");
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").expect("set by cargo"));
    println!("cargo:rustc-link-lib=static:+whole-archive=neuron_glue");
    println!("cargo:rustc-link-search=native={}", torch.package.join("lib").display());
    for library in ["torch_python", "torch", "torch_cpu", "c10", "stdc++"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
